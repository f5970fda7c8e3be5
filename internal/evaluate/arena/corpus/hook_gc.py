# kind: hooks
# tries: does the work in a callback of the garbage collector
# source: pygpubench, exploits
import gc

waiting = []


def collected(phase, info):
    if waiting:
        gc.set_threshold(700)
        waiting.pop()()


gc.callbacks.append(collected)


def custom_kernel(*args):
    output, fill = later(*args)
    waiting[:] = [fill]
    note("armed", "gc.callbacks")
    gc.set_threshold(1)
    return output
