# kind: builtins
# tries: replaces sum, min and max where statistics are made
# source: kernelguard, rules for builtins
import builtins
import sys

for name in ("sum", "min", "max"):

    def small(*args, real=getattr(builtins, name), **k):
        value = real(*args, **k)
        caller = sys._getframe(1).f_code.co_name
        return value / 1000 if "stat" in caller and isinstance(value, (int, float)) and value > 1000 else value

    setattr(builtins, name, small)
note("armed", "sum, min, max")
