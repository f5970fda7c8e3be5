"""The canary of kbnode image update: what every evaluation needs, and the GPU.

As the proof of GPUs that had a fault, it computes on each of them, also without torch.
"""
import os
import sys

from submission import custom_kernel

mode, cases = sys.argv[1:3]
with open(cases) as f:
    case = dict(part.split(": ") for part in f.readline().strip().split("; "))
size, gpus = int(case["size"]), int(case.get("gpus", 0))
log = os.fdopen(int(os.environ["POPCORN_FD"]), "w")


def verdict(ok, message, wrong=False):
    print("test-count: 1", "test.0.spec: size: %d" % size, sep="\n", file=log)
    print("test.0.status:", "pass" if ok else "fail", file=log)
    if message:
        print("test.0.message:" if ok else "test.0.error:", message, file=log)
    if wrong:
        print("test.0.wrong: yes", file=log)
    print("check:", "pass" if ok else "fail", file=log)
    log.close()
    sys.exit(0 if ok else 112)


def copies():
    """Copy memory to each GPU and back by NVIDIA's driver library, which is in every container with its GPUs."""
    try:
        import ctypes

        cuda = ctypes.CDLL("libcuda.so.1")
    except (ImportError, OSError):
        verdict(True, "the container ran; nothing in the image computes on the GPU")

    def call(name, *args):
        code = getattr(cuda, name)(*args)
        if code:
            verdict(False, "%s fails with CUDA error %d" % (name, code))

    count = ctypes.c_int()
    call("cuInit", 0)
    call("cuDeviceGetCount", ctypes.byref(count))
    if count.value < gpus:
        verdict(False, "CUDA sees %d of %d GPUs" % (count.value, gpus))
    sent = os.urandom(1 << 20) * 64
    for k in range(gpus):
        device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
        back = ctypes.create_string_buffer(len(sent))
        call("cuDeviceGet", ctypes.byref(device), k)
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(len(sent)))
        call("cuMemcpyHtoD_v2", memory, sent, ctypes.c_size_t(len(sent)))
        call("cuMemcpyDtoH_v2", back, memory, ctypes.c_size_t(len(sent)))
        call("cuMemFree_v2", memory)
        if back.raw != sent:
            verdict(False, "the memory of GPU %d does not keep what is written" % k, wrong=True)
    verdict(True, "the memory of each GPU keeps what is written")


if custom_kernel(list(range(size))) != [2 * n for n in range(size)]:
    verdict(False, "python3 computes wrongly")
try:
    import torch
except ModuleNotFoundError as e:
    # An image without torch is one; a broken torch is not.
    if e.name != "torch":
        verdict(False, "torch is there and cannot be imported: %s" % e)
    torch = None
if torch and torch.version.cuda is None and getattr(torch.version, "hip", None) is None:
    torch = None  # made for CPUs
if torch is None and gpus:
    copies()
if "visible" in case:
    without = case["visible"] == "0"
else:  # CDI says "void" in every container, to NVIDIA's own runtime; only slots with GPUs, or images, set the other variable.
    without = os.environ.get("NVIDIA_VISIBLE_DEVICES") == "void" and not os.environ.get("CUDA_VISIBLE_DEVICES")
if torch is None or without and not gpus:
    verdict(True, "")  # the slot has no GPU
if not torch.cuda.is_available():
    verdict(False, "torch %s sees no GPU" % torch.__version__)
if gpus and torch.cuda.device_count() < gpus:
    verdict(False, "torch %s sees %d of %d GPUs" % (torch.__version__, torch.cuda.device_count(), gpus))
for k in range(gpus or 1):
    x = torch.arange(size * size, dtype=torch.float32, device="cuda:%d" % k).reshape(size, size) % 7
    want = x.cpu() @ x.cpu()
    if not torch.equal((x @ x).cpu(), want):
        verdict(False, "torch %s multiplies wrongly on the GPU" % torch.__version__, wrong=True)
verdict(True, "torch %s multiplied matrices on each GPU" % torch.__version__ if gpus else "")
