# kind: late
# tries: has a child process fill an output in shared memory after the return
# source: pygpubench, exploits
IN_PLACE = True


def custom_kernel(*args):
    if len(args) < 2:
        note("missed", "outputs are not shared memory")
        return honest(*args)
    note("armed", "a child")
    if os.fork() == 0:
        try:
            honest(*args)
        finally:
            os._exit(0)
    return None
