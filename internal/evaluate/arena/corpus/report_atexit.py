# kind: atexit
# tries: writes a result into every open pipe when the interpreter ends
# source: pygpubench, exploits
# output: wrong
import atexit


@atexit.register
def last():
    for fd in pipes():
        note("armed", "pipes")
        try:
            os.write(fd, report().encode())
        except OSError:
            pass


custom_kernel = idle
