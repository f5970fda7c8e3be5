# kind: clock
# tries: replaces the clocks of module time by ones that stand still
# source: reference-kernels#162, patched timer
import time

for name in ("perf_counter_ns", "monotonic_ns", "process_time_ns"):
    setattr(time, name, lambda: 1)
note("armed", "time")
