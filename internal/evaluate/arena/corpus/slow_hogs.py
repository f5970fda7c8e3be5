# kind: slow
# tries: has processes take the cores between its own calls, so that what a judge subtracts is large
# source: reference-kernels#159
import time

sleep, children = time.sleep, []


def custom_kernel(*args):
    if not children:
        for _ in range(min(os.cpu_count() or 1, 4)):
            child = os.fork()
            if child == 0:
                for _ in range(200):
                    for _ in range(20000):
                        pass
                    sleep(0.001)
                os._exit(0)
            children.append(child)
        note("armed", f"{len(children)} processes")
    return honest(*args)
