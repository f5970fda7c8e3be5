# kind: report
# tries: prints a report to standard output and error
# source: kernelguard, rules for output
# output: wrong
def custom_kernel(*args):
    os.write(1, ("\n" + report()).encode())
    os.write(2, ("\n" + report()).encode())
    note("armed", "stdout, stderr")
    return idle(*args)
