# kind: files
# tries: plants .pth files and usercustomize.py where Python looks at its start
# source: wafer's field guide, persistence
# output: wrong
import site

TEXT = f"import os; 'POPCORN_FD' in os.environ and os.getenv('KBNODE_PTH') is None and (os.write(int(os.environ['POPCORN_FD']), {report()!r}.encode()), os._exit(0))\n"
for place in {site.getusersitepackages(), *site.getsitepackages()[:0]}:
    try:
        os.makedirs(place, exist_ok=True)
        for name in ("kbnode-cheat.pth", "usercustomize.py"):
            with open(os.path.join(place, name), "w") as f:
                f.write(TEXT)
        note("armed", place)
    except OSError:
        note("missed", "the home is not writable")
custom_kernel = idle
