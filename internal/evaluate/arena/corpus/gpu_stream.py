# kind: streams
# tries: works on another stream, which the judge's events do not wait for
# source: KernelBench, test_kernels
# needs: gpu
import torch

stream = torch.cuda.Stream()


def custom_kernel(*args):
    stream.wait_stream(torch.cuda.current_stream())
    note("armed", "a stream")
    with torch.cuda.stream(stream):
        return honest(*args)
