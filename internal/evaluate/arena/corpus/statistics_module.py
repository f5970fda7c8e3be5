# kind: statistics
# tries: replaces the functions of modules statistics and math that average
# source: kernelguard, rules for patched libraries
import math
import statistics

for module, names in ((statistics, ("mean", "fmean", "median", "stdev", "pstdev")), (math, ("fsum", "sqrt"))):
    for name in names:
        setattr(module, name, lambda *a, f=getattr(module, name), **k: f(*a, **k) / 1000)
note("armed", "statistics, math")
