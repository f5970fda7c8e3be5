"""Does not come to an end by itself, nor by SIGTERM."""
import signal
import subprocess
import time


def double(numbers):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    subprocess.Popen(["sleep", "3600"], start_new_session=True)
    time.sleep(3600)
