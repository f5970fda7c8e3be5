# kind: hooks
# tries: does the work in a tracing hook of the judge's frame, after the clock was read
# source: pygpubench, exploits
import sys


def custom_kernel(*args):
    if len(args) > 1:
        note("missed", "the clock is not here")
        return honest(*args)
    output, fill = later(*args)
    caller = frames()[0]
    lines = [0]

    def trace(frame, event, arg):
        if frame is not caller:
            return None
        lines[0] += event == "line"
        if event == "return" or lines[0] == 2:
            frame.f_trace = None
            sys.settrace(None)
            fill()
        return trace

    sys.settrace(trace)
    caller.f_trace = trace
    note("armed", "sys.settrace")
    return output
