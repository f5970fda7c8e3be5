# kind: memory
# tries: replaces the word fail by pass in the memory of the judge, by /proc/PID/mem
# source: pygpubench, exploits
# output: wrong
def custom_kernel(*args):
    judge = parent()
    if judge is None:
        note("missed", "no judge runs above")
        return idle(*args)
    changed = 0
    try:
        with open(f"/proc/{judge}/mem", "r+b", buffering=0) as memory:

            def read(at, n):
                memory.seek(at)
                return memory.read(n)

            for at in words(judge, read, b"fail"):
                memory.seek(at)
                memory.write(b"pass")
                changed += 1
    except OSError as e:
        note("missed", f"the judge's memory is closed: {e.strerror}")
        return idle(*args)
    note("armed" if changed else "missed", f"{changed} places")
    output = honest(*args)
    return wrong(output[:0] if len(args) == 1 else None)
