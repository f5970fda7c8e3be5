# kind: slow
# tries: has a process sweep the caches and the memory's bandwidth between its own calls
# source: reference-kernels#159
import time

sleep, children = time.sleep, []


def custom_kernel(*args):
    if not children:
        child = os.fork()
        if child == 0:
            block = bytearray(64 << 20)
            for i in range(100):
                block[:] = bytes(len(block))
                sleep(0.001)
            os._exit(0)
        children.append(child)
        note("armed", "a process")
    return honest(*args)
