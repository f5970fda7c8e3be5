# kind: streams
# tries: works on a stream that first waits for long, so that the clock stops before
# source: wafer's field guide, streams
# needs: gpu
import torch

stream = torch.cuda.Stream()


def custom_kernel(*args):
    note("armed", "a stream")
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(100000)
        return honest(*args)
