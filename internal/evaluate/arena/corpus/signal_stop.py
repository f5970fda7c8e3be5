# kind: signals
# tries: stops the judge while it works, and has a child let it go on
# source: pygpubench, exploits
import signal
import time

sleep = time.sleep


def custom_kernel(*args):
    judge = parent()
    if judge is None:
        note("missed", "no judge runs above")
        return honest(*args)
    child = os.fork()
    if child == 0:
        for _ in range(50):  # also if the submission is stopped
            sleep(0.001)
            try:
                os.kill(judge, signal.SIGCONT)
            except OSError:
                pass
        os._exit(0)
    try:
        os.kill(judge, signal.SIGSTOP)
        note("armed", "SIGSTOP")
    except OSError:
        note("missed", "signals do not reach the judge")
    output = honest(*args)
    try:
        os.kill(judge, signal.SIGCONT)
    except OSError:
        pass
    os.waitpid(child, 0)
    return output
