package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A cache is where a library keeps what it compiles. By default, that is in the home or TMPDIR, which each program has for
// itself. An image or a job may name another directory.
type cache struct {
	variable string // names the directory; programs get it as placeCaches decides
	library  string
	since    string // its first release that reads the variable; "" if each in use does
	source   string // where it does: repository and file, or page
	product  product
}

// A product is what an image may have in a directory of a package, which the library prefers to the home. It asks access(2)
// or no one whether it can write there, and Landlock, which does not change what access(2) answers, lets no program do so.
type product struct {
	dir   string // starts with the package
	files string // pattern, as of path.Match
	home  string // the directory to use instead, below a program's home
}

// caches are those of libraries that submissions import, as of August 2026. Not in it are libraries that read no such
// variable, and use the home (pyximport), or try to write before they choose (numba, for a package's own directory).
var caches = []cache{
	// Its default is its own directory if access(2) says that it may write there, else a copy of that in the home, from which
	// it imports no module. With the variable, it imports only from the variable's directory.
	{"AITER_JIT_DIR", "aiter", "0.1.5", "ROCm/aiter aiter/jit/core.py", product{"aiter/jit", "*.so", ".aiter/jit"}},
	// Its default is the home, but aiter sets the variable, since 0.1.13, if it has compiled kernels (aiter/__init__.py).
	{"FLYDSL_RUNTIME_CACHE_DIR", "FlyDSL", "0.1.2", "ROCm/FlyDSL python/flydsl/utils/env.py", product{"aiter/jit/flydsl_cache", "*/*.pkl", ".flydsl/cache"}},

	{variable: "TORCH_EXTENSIONS_DIR", library: "torch", source: "pytorch/pytorch torch/utils/cpp_extension.py"},
	{variable: "TORCHINDUCTOR_CACHE_DIR", library: "torch", source: "pytorch/pytorch torch/_inductor/runtime/cache_dir_utils.py"},
	{variable: "PYTORCH_KERNEL_CACHE_PATH", library: "torch", source: "pytorch/pytorch aten/src/ATen/native/cuda/jit_utils.cpp"},
	{variable: "TRITON_HOME", library: "triton", source: "triton-lang/triton python/triton/knobs.py"},
	{variable: "TRITON_CACHE_DIR", library: "triton", source: "triton-lang/triton python/triton/knobs.py"},
	{variable: "TRITON_DUMP_DIR", library: "triton", source: "triton-lang/triton python/triton/knobs.py"},
	{variable: "TRITON_OVERRIDE_DIR", library: "triton", source: "triton-lang/triton python/triton/knobs.py"},
	{variable: "HELION_CACHE_DIR", library: "helion", since: "0.0.11", source: "pytorch/helion helion/autotuner/local_cache.py"},
	{variable: "TILELANG_CACHE_DIR", library: "tilelang", since: "0.1.6", source: "tile-ai/tilelang tilelang/env.py"},
	{variable: "TILELANG_TMP_DIR", library: "tilelang", since: "0.1.6", source: "tile-ai/tilelang tilelang/env.py"},
	{variable: "TVM_FFI_CACHE_DIR", library: "tvm-ffi", since: "0.1.0", source: "apache/tvm-ffi python/tvm_ffi/cpp/extension.py"},
	{variable: "CUTE_DSL_CACHE_DIR", library: "nvidia-cutlass-dsl", since: "4.3.2", source: "NVIDIA/cutlass python/CuTeDSL/cutlass/base_dsl/cache_helpers.py"},
	{variable: "CUDA_TILE_CACHE_DIR", library: "cuda-tile", since: "1.2.0", source: "NVIDIA/cutile-python src/cutile_cache/_env.py"},
	{variable: "FLASHINFER_WORKSPACE_BASE", library: "flashinfer", since: "0.2.5", source: "flashinfer-ai/flashinfer flashinfer/jit/env.py"},
	{variable: "DG_JIT_CACHE_DIR", library: "deep_gemm", since: "2.1.0", source: "deepseek-ai/DeepGEMM csrc/jit/compiler.hpp"},
	{variable: "DG_CACHE_DIR", library: "deep_gemm", since: "1.0.0", source: "deepseek-ai/DeepGEMM deep_gemm/jit/compiler.py, until DG_JIT_CACHE_DIR"},
	{variable: "CACHEDB", library: "tinygrad", since: "0.8.0", source: "tinygrad/tinygrad tinygrad/helpers.py"},
	{variable: "CUPY_CACHE_DIR", library: "cupy", source: "cupy/cupy cupy/cuda/_compiler_cache.py"},
	{variable: "NUMBA_CACHE_DIR", library: "numba", source: "numba/numba numba/core/config.py"},
	{variable: "CYTHON_CACHE_DIR", library: "Cython", source: "cython/cython Cython/Build/Cache.py"},
	{variable: "JAX_COMPILATION_CACHE_DIR", library: "jax", source: "https://docs.jax.dev/en/latest/persistent_compilation_cache.html"},
	{variable: "CUDA_CACHE_PATH", library: "CUDA's driver", source: "CUDA C++ Programming Guide, environment variables"},
	{variable: "AMD_COMGR_CACHE_DIR", library: "comgr", source: "ROCm/llvm-project amd/comgr/src/comgr-cache.cpp"},
	{variable: "MIOPEN_USER_DB_PATH", library: "MIOpen", source: "https://rocm.docs.amd.com/projects/MIOpen"},
	{variable: "MIOPEN_CUSTOM_CACHE_DIR", library: "MIOpen", source: "https://rocm.docs.amd.com/projects/MIOpen"},
	{variable: "CCACHE_DIR", library: "ccache", source: "ccache(1)"},
	{variable: "MPLCONFIGDIR", library: "matplotlib", source: "https://matplotlib.org/stable/install/environment_variables_faq.html"},
	{variable: "XDG_CACHE_HOME", library: "many", source: "XDG Base Directory Specification"},
	{variable: "XDG_CONFIG_HOME", library: "many", source: "XDG Base Directory Specification"},
	{variable: "XDG_DATA_HOME", library: "many", source: "XDG Base Directory Specification"},
	{variable: "XDG_STATE_HOME", library: "many", source: "XDG Base Directory Specification"},
	{variable: "XDG_RUNTIME_DIR", library: "many", source: "XDG Base Directory Specification"},
}

func isCacheVar(name string) bool {
	return slices.ContainsFunc(caches, func(c cache) bool { return c.variable == name })
}

// brought is a product that the job's image has.
type brought struct {
	variable, home string
	dir            string   // where it is
	names          []string // of the files, relative to dir
}

// maxBrought bounds the files of a product; aiter has less than 200 modules.
const maxBrought = 1 << 12

// placeCaches decides on the variables that the image or the job set. One stays if it leads to where programs can write
// and the engine clears up after each. Without the others, libraries use the program's home. Of a product of the image,
// each program gets links there. Call it when the areas are known, before any program of the submission runs.
func (e *engine) placeCaches(ctx context.Context) {
	packages := e.packages(ctx)
	for _, c := range caches {
		value := getenv(e.temp, c.variable)
		if dir, ok := e.clears(value); value != "" && ok {
			e.env, e.kept = setenv(e.env, c.variable, value), append(e.kept, dir)
			continue
		}
		name, below, _ := strings.Cut(c.product.dir, "/")
		dirs := []string{value}
		if at := packages[name]; at != "" {
			dirs = append(dirs, filepath.Join(at, below))
		}
		if i := slices.IndexFunc(dirs, func(dir string) bool { return filepath.IsAbs(dir) && isDir(dir) }); i >= 0 && c.product.home != "" {
			names, _ := fs.Glob(os.DirFS(dirs[i]), c.product.files) // the pattern is valid
			e.brought = append(e.brought, brought{c.variable, c.product.home, dirs[i], names[:min(len(names), maxBrought)]})
		}
	}
}

// packages returns the directories of the packages that have products, by name. It asks python3, because such packages are
// installed in many ways, and only where their GPUs are.
func (e *engine) packages(ctx context.Context) map[string]string {
	if e.runtime != runtimeROCm || e.programs["python3"] == "" {
		return nil
	}
	const find = `import sys; del sys.path[0]
import importlib.util, os
s = importlib.util.find_spec("aiter")
print(s and s.origin and os.path.dirname(s.origin) or "")`
	out, ok := e.tool(ctx, "python3", "-c", find)
	if dir := strings.TrimSuffix(out, "\n"); ok && filepath.IsAbs(dir) {
		return map[string]string{"aiter": dir}
	}
	return nil
}

// clears reports whether programs can write to a path, relative to the job's directory if it is, and nothing that they
// leave there reaches the next one, and where the path leads. What the job's directory has already must stay as it is,
// so it does not count.
func (e *engine) clears(path string) (dir string, ok bool) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(e.dir, path)
	}
	real, missing := filepath.Clean(path), ""
	for {
		to, err := filepath.EvalSymlinks(real)
		if err == nil {
			real = to
			break
		}
		if _, lerr := os.Lstat(real); lerr == nil || !errors.Is(err, fs.ErrNotExist) {
			return "", false // a link that leads nowhere, or a directory that is closed
		}
		missing, real = filepath.Join(filepath.Base(real), missing), filepath.Dir(real)
	}
	return filepath.Join(real, missing), unix.Access(real, unix.W_OK) == nil && slices.ContainsFunc(e.areas, func(a *area) bool {
		return within(a.dir, real) && (a.kind == temporaryArea || a.kind == jobArea && missing != "")
	})
}

// bring makes links to the image's products in a program's space, and leads the libraries there.
func (e *engine) bring(env []string, s space) []string {
	for _, b := range e.brought {
		dir := filepath.Join(string(s), b.home)
		if err := b.link(dir); err != nil {
			e.note("%s is not set: %v", b.variable, err)
			continue
		}
		env = setenv(env, b.variable, dir)
	}
	return env
}

func (b brought) link(dir string) error {
	err := os.MkdirAll(dir, 0o700)
	for _, name := range b.names {
		to := filepath.Join(dir, name)
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o700)
		}
		if err == nil {
			err = os.Symlink(filepath.Join(b.dir, name), to)
		}
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", b.dir, err)
	}
	return nil
}
