# Stands in for libraries that use the home or TMPDIR, or what a variable names, and do not ask whether they can.
import os
import tempfile


def put(directory):
    os.makedirs(directory, exist_ok=True)
    new = not os.path.exists(directory + "/kernel")
    with open(directory + "/kernel", "w") as f:
        f.write("compiled")
    return "compiled" if new else "there before"


# The variable that names the directory, the library's own choice, and what it keeps there.
WHERE = {
    "cupy": ("CUPY_CACHE_DIR", "~/.cupy/kernel_cache", ""),
    "cutlass": ("CUTE_DSL_CACHE_DIR", "TMP/user/cutlass_python_cache", ""),
    "deep_gemm": ("DG_JIT_CACHE_DIR", "~/.deep_gemm", "/tmp"),
    "flashinfer": ("FLASHINFER_WORKSPACE_BASE", "~", "/.cache/flashinfer"),
    "helion": ("HELION_CACHE_DIR", "TMP/torchinductor_user/helion", ""),
    "inductor": ("TORCHINDUCTOR_CACHE_DIR", "TMP/torchinductor_user", ""),
    "pyximport": (None, "~/.pyxbld", ""),
    "tilelang": ("TILELANG_CACHE_DIR", "~/.tilelang/cache", "/tmp"),
    "tinygrad": ("CACHEDB", "~/.cache/tinygrad/cache.db", "/.."),
    "triton": ("TRITON_CACHE_DIR", "~/.triton/cache", ""),
    "tvm_ffi": ("TVM_FFI_CACHE_DIR", "~/.cache/tvm-ffi", ""),
}


def kernel(library):
    variable, own, below = WHERE[library]
    directory = os.environ.get(variable or "", own.replace("TMP", tempfile.gettempdir()))
    return put(os.path.normpath(os.path.expanduser(directory) + below))


def numba():
    """Tries before it chooses, for a function in a package of the image."""
    for directory in (os.environ.get("NUMBA_CACHE_DIR"), os.path.dirname(__file__) + "/__pycache__", os.path.expanduser("~/.cache/numba")):
        if not directory:
            continue
        try:
            os.makedirs(directory, exist_ok=True)
            tempfile.TemporaryFile(dir=directory).close()
        except OSError:
            continue
        return put(directory)
    return "cannot cache"
