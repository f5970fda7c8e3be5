# Stands in for aiter: it chooses directories as that does, and compiles nothing.
import os

_kernels = os.path.join(os.path.dirname(__file__), "jit", "flydsl_cache")
if os.path.isdir(_kernels):
    os.environ.setdefault("FLYDSL_RUNTIME_CACHE_DIR", _kernels)
