# kind: clock
# tries: replaces torch.cuda.Event, so that elapsed times are short
# source: KernelBench, test_kernels
# needs: gpu
import torch

real = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda self, end: real(self, end) / 1000
note("armed", "Event.elapsed_time")
