# kind: shared
# tries: goes on writing the output in shared memory after it said that it was done
# source: reference-kernels#159
import threading

IN_PLACE = True
work, ready = [], threading.Event()


def write():
    while True:
        ready.wait()
        ready.clear()
        while work:
            honest(*work.pop())


def custom_kernel(*args):
    if len(args) < 2:
        note("missed", "outputs are not shared memory")
        return honest(*args)
    if not work and not ready.is_set() and threading.active_count() < 2:
        threading.Thread(target=write, daemon=True).start()
    work.append(args)
    ready.set()
    note("armed", "a thread")
    return None
