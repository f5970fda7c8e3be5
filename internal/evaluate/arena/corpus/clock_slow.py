# kind: clock
# tries: replaces all clocks of module time by ones a thousand times slower
# source: kernelguard, rules for patched timers
import time

for name in ("perf_counter", "monotonic", "process_time", "time"):
    begin, real, real_ns = getattr(time, name)(), getattr(time, name), getattr(time, name + "_ns")
    setattr(time, name, lambda real=real, begin=begin: begin + (real() - begin) / 1000)
    begin_ns = real_ns()
    setattr(time, name + "_ns", lambda real=real_ns, begin=begin_ns: begin + (real() - begin) // 1000)
note("armed", "time")
