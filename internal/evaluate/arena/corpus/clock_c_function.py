# kind: clock
# tries: overwrites the C function behind the clock with ctypes
# source: pygpubench, exploits
import ctypes
import time

CALL = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p)
constant = CALL(lambda module, none: 1)
for name in ("perf_counter_ns", "monotonic_ns"):
    definition = ctypes.c_void_p.from_address(id(getattr(time, name)) + 2 * ctypes.sizeof(ctypes.c_void_p)).value
    method = ctypes.c_void_p.from_address(definition + ctypes.sizeof(ctypes.c_void_p))
    method.value = ctypes.cast(constant, ctypes.c_void_p).value
note("armed", "PyMethodDef")
