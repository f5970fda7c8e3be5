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
)

// system describes the machine, and returns the number of GPUs that torch
// counts. It runs no program where torch is installed for the CPU only, and
// never torch itself: importing it takes about a second and initialises CUDA.
func (e *engine) system(ctx context.Context) (*System, int) {
	s := &System{CPU: cpuModel("/proc/cpuinfo"), Platform: platform(), DeviceCount: 1}
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

// cpuModel returns the model name of the last processor, empty where the kernel
// gives none (ARM).
func cpuModel(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	last := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			last[strings.TrimSpace(k)] = strings.TrimSpace(v)
		}
	}
	if last["model name"] == "unknown" {
		return last["vendor_id"]
	}
	return last["model name"]
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

// glibcVersion finds the C library and reads the version off its banner: this
// binary is static and does not load it.
func glibcVersion(machine string) string {
	for _, dir := range []string{"/lib/" + machine + "-linux-gnu", "/usr/lib/" + machine + "-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"} {
		f, err := os.Open(filepath.Join(dir, "libc.so.6"))
		if err != nil {
			continue
		}
		v := banner(f)
		_ = f.Close()
		if v != "" {
			return v
		}
	}
	return ""
}

// banner reads "GNU C Library (…) stable release version 2.36." in pieces: the
// library has 2 MiB, and keeping it would count as ours.
func banner(r io.Reader) string {
	const mark, longest = "GNU C Library", 256
	buf := make([]byte, 0, 64<<10)
	for {
		n, err := io.ReadFull(r, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		if i := bytes.Index(buf, []byte(mark)); i >= 0 && (len(buf)-i >= longest || err != nil) {
			_, after, ok := strings.Cut(string(buf[i:]), " version ")
			if !ok {
				return ""
			}
			return strings.TrimRight(after[:len(after)-len(strings.TrimLeft(after, "0123456789."))], ".")
		}
		if err != nil {
			return ""
		}
		buf = buf[:copy(buf, buf[len(buf)-longest:])]
	}
}

// tool runs a program that describes the machine. One that is missing, fails or
// hangs gives ok false.
func (e *engine) tool(ctx context.Context, argv ...string) (stdout string, ok bool) {
	o, err := program{argv: argv, env: e.env, dir: e.dir, limit: seconds(toolLimit)}.run(ctx)
	if err != nil || o.timedOut || o.cancelled || o.exitCode != 0 {
		return "", false
	}
	return decode(o.stdout.head), true
}

// torchVersion is what torch/version.py says; an empty runtime version means
// that torch was built without it.
type torchVersion struct{ version, cuda, hip string }

// findTorch looks for torch where python3 would.
func (e *engine) findTorch(ctx context.Context) (torchVersion, bool) {
	python, err := lookPath(e.env, "python3")
	if err != nil {
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
	// python3 is a script, or laid out in a way that is not known here: ask it.
	const find = `import sys; del sys.path[0]
import importlib.util, os
s = importlib.util.find_spec("torch")
print(s and s.origin and os.path.dirname(s.origin) or "")`
	out, ok := e.tool(ctx, "python3", "-c", find)
	if out = strings.TrimSpace(out); !ok || out == "" {
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

// pythonDirs lists the directories that an interpreter imports installed modules
// from, and says whether its layout was recognised.
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
	libs, _ := filepath.Glob(filepath.Join(base, "lib*", filepath.Base(real)))
	if _, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(real), "python3.")); err != nil || len(libs) == 0 {
		return dirs, false
	}
	version := filepath.Base(real)
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
