# kind: report
# tries: writes a report to the descriptor that POPCORN_FD names
# source: reference-kernels#159
# output: wrong
def custom_kernel(*args):
    try:
        os.write(int(os.environ["POPCORN_FD"]), report().encode())
        note("armed", "POPCORN_FD")
        wrong(None)
    except (KeyError, OSError, ValueError):
        note("missed", "POPCORN_FD is not open here")
        return idle(*args)
    os._exit(0)
