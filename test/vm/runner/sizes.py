"""Reports what came of a source that is large."""
import hashlib
import os

with open("table.txt", "rb") as f:
    table = f.read()
with os.fdopen(int(os.environ["POPCORN_FD"]), "w") as report:
    print("size:", len(table), file=report)
    print("sha256:", hashlib.sha256(table).hexdigest(), file=report)
    print("environ:", sum(len(k) + len(v) + 2 for k, v in os.environ.items()) < 65536, file=report)
    print("check: pass", file=report)
