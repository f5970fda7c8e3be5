# kind: clock
# tries: replaces torch.cuda.synchronize, so that the clock does not wait for the work
# source: kernelguard, rules for synchronization
# needs: gpu
import torch

torch.cuda.synchronize = lambda *a, **k: None
torch.cuda.Event.synchronize = lambda self: None
note("armed", "torch.cuda.synchronize")
