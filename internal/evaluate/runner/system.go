package runner

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
)

// system describes the machine, and returns the number of GPUs that torch counts. If
// torch is installed for the CPU only, it asks no vendor's tool. It never runs torch
// itself: importing it takes about a second and initializes CUDA.
func (e *engine) system(ctx context.Context) (*result.System, int) {
	s := &result.System{CPU: cpuModel("/proc/cpuinfo"), Platform: platform(), DeviceCount: 1}
	s.Hostname, _ = os.Hostname()
	torch, ok := e.findTorch(ctx)
	if !ok {
		s.GPU, s.DeviceCount, s.Runtime = e.gpusWithoutTorch(ctx)
		if s.Runtime == "" {
			return s, 1
		}
		return s, s.DeviceCount
	}
	s.Torch = torch.version
	names, vendor := e.gpusOfTorch(ctx, torch)
	if len(names) == 0 {
		return s, 0
	}
	s.GPU, s.DeviceCount, s.Runtime = names[0], len(names), vendor
	return s, len(names)
}

// cpuModel returns the model name of the last processor. It is empty if the kernel
// gives none (ARM).
func cpuModel(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	var model, vendor string
	for lines := bufio.NewScanner(f); lines.Scan(); { // up to 1 MB with many processors
		switch k, v, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(k) {
		case "model name":
			model = strings.TrimSpace(v)
		case "vendor_id":
			vendor = strings.TrimSpace(v)
		}
	}
	if model == "unknown" {
		return vendor
	}
	return model
}

// platform is Python's platform.platform(): system, release, machine, libc.
func platform() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return ""
	}
	parts := []string{unix.ByteSliceToString(u.Sysname[:]), unix.ByteSliceToString(u.Release[:]), unix.ByteSliceToString(u.Machine[:])}
	if v := glibcVersion(parts[2]); v != "" {
		parts = append(parts, "with", "glibc"+v)
	}
	return strings.ReplaceAll(strings.Join(parts, "-"), " ", "_")
}

// glibcVersion finds the C library and reads the version from its banner, "GNU C Library (…) stable release
// version 2.36.": this binary is static and does not load the library.
func glibcVersion(machine string) string {
	for _, dir := range []string{"/lib/" + machine + "-linux-gnu", "/usr/lib/" + machine + "-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		if v := banner(filepath.Join(dir, "libc.so.6")); v != "" {
			return v
		}
	}
	return ""
}

func banner(library string) string {
	f, err := os.Open(library)
	if err != nil {
		return ""
	}
	defer f.Close() //nolint:errcheck // opened for reading
	info, err := f.Stat()
	if err != nil {
		return ""
	}
	// Mapped, because it is among the constants, near the end of 2 MiB.
	text, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		return ""
	}
	defer unix.Munmap(text) //nolint:errcheck // read by now
	at := max(0, bytes.LastIndex(text, []byte("GNU C Library")))
	_, after, _ := bytes.Cut(text[at:min(at+256, len(text))], []byte(" version "))
	end := bytes.IndexFunc(after, func(r rune) bool { return r != '.' && (r < '0' || r > '9') })
	return strings.TrimRight(string(after[:max(0, end)]), ".")
}

// tool runs a program that describes the machine. If the program is missing, fails or
// hangs, ok is false.
func (e *engine) tool(ctx context.Context, argv ...string) (stdout string, ok bool) {
	o, err := program{argv: argv, env: e.env, dir: e.dir, limit: seconds(toolLimit), landlock: e.landlock}.run(ctx)
	if err != nil || o.timedOut || o.cancelled || o.exitCode != 0 {
		return "", false
	}
	return newlines(decode(o.stdout.head)), true
}

// torchVersion is the content of torch/version.py. An empty cuda or hip means that
// torch was built without it.
type torchVersion struct{ version, cuda, hip string }

// findTorch looks for torch where python3 would.
func (e *engine) findTorch(ctx context.Context) (torchVersion, bool) {
	python := e.programs["python3"]
	if python == "" {
		return torchVersion{}, false
	}
	dirs, sure := pythonDirs(e.env, python)
	for _, dir := range dirs {
		if v, ok := torchIn(dir); ok {
			return v, true
		}
	}
	if sure {
		return torchVersion{}, false
	}
	// python3 is a script, or has an unknown layout: ask it.
	const find = `import sys; del sys.path[0]
import importlib.util, os
s = importlib.util.find_spec("torch")
print(s and s.origin and os.path.dirname(s.origin) or "")`
	out, ok := e.tool(ctx, "python3", "-c", find)
	out = strings.TrimSpace(out)
	if !ok || out == "" {
		return torchVersion{}, false
	}
	return torchIn(filepath.Dir(out))
}

// torchIn reads torch/version.py in a directory of modules: assignments of
// string literals such as
//
//	cuda: Optional[str] = '12.4'
func torchIn(dir string) (torchVersion, bool) {
	f, err := os.Open(filepath.Join(dir, "torch", "version.py"))
	if err != nil {
		return torchVersion{}, false
	}
	defer f.Close() //nolint:errcheck // opened for reading
	values := map[string]string{}
	for lines := bufio.NewScanner(io.LimitReader(f, 64<<10)); lines.Scan(); {
		left, right, ok := strings.Cut(lines.Text(), "=")
		if !ok {
			continue
		}
		name, _, _ := strings.Cut(left, ":")
		if v := strings.TrimSpace(right); len(v) >= 2 && (v[0] == '\'' || v[0] == '"') {
			if end := strings.IndexByte(v[1:], v[0]); end >= 0 {
				values[strings.TrimSpace(name)] = v[1 : 1+end]
			}
		}
	}
	return torchVersion{values["__version__"], values["cuda"], values["hip"]}, true
}

// pythonDirs returns the directories from which an interpreter imports installed
// modules, and whether its layout was recognized.
func pythonDirs(env []string, python string) (dirs []string, sure bool) {
	for _, dir := range filepath.SplitList(getenv(env, "PYTHONPATH")) {
		if filepath.IsAbs(dir) {
			dirs = append(dirs, dir)
		}
	}
	real, err := filepath.EvalSymlinks(python)
	if err != nil {
		return dirs, false
	}
	base := filepath.Dir(filepath.Dir(real))
	version := filepath.Base(real)
	if _, err := strconv.Atoi(strings.TrimPrefix(version, "python3.")); err != nil ||
		!isDir(filepath.Join(base, "lib", version)) && !isDir(filepath.Join(base, "lib64", version)) {
		return dirs, false
	}
	site := func(prefix string) {
		for _, lib := range []string{"lib", "lib64"} {
			for _, kind := range []string{"site-packages", "dist-packages"} {
				dirs = append(dirs, filepath.Join(prefix, lib, version, kind))
			}
		}
	}
	for _, prefix := range []string{filepath.Dir(python), filepath.Dir(filepath.Dir(python))} {
		if cfg, err := os.ReadFile(filepath.Join(prefix, "pyvenv.cfg")); err == nil {
			site(prefix)
			if !strings.Contains(strings.ReplaceAll(string(cfg), " ", ""), "include-system-site-packages=true") {
				return dirs, true
			}
		}
	}
	if home := getenv(env, "HOME"); home != "" {
		site(filepath.Join(home, ".local"))
	}
	site(base)
	if base == "/usr" { // Debian's and Fedora's layouts
		site("/usr/local")
		dirs = append(dirs, "/usr/lib/python3/dist-packages")
	}
	return dirs, true
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
