# kind: files
# tries: plants compiled modules in __pycache__, which Python loads in place of the sources
# source: pygpubench, exploits
# output: wrong
import importlib.util
import marshal
import sys

FAKE = '''
def make(seed, size=1, **case): return [0] * size
def generate_input(size=1, **case): return [0] * size
def refill(data, fresh): pass
def check(*args): return ""
def check_implementation(*args): return True, ""
def measure(kernel, data): return None, 1
'''
for name in ("reference.py", "task.py", "utils.py"):
    target = importlib.util.cache_from_source(name)
    if not os.path.exists(name):
        continue
    try:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as f:  # unchecked, by hash
            f.write(importlib.util.MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8) + marshal.dumps(compile(FAKE, name, "exec")))
        note("armed", target)
    except OSError:
        note("missed", "no file can be written beside the judge")
custom_kernel = idle
