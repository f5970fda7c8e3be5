package probe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/text"
	"github.com/gpu-mode/kbnode/test/must"
)

const empty = `{"schema":1,"ok":true,"gpus":[]}`

func TestWhatAProbeMayDo(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name, script string
		want         string // in the error; "" is none
	}{
		{"answers", "echo '" + empty + "'", ""},
		{
			"calls a function that the driver lacks",
			"echo \"$0: symbol lookup error: $0: undefined symbol: nvmlNew\" >&2; echo more >&2; exit 127",
			"the NVML probe crashed: symbol lookup error: undefined symbol: nvmlNew (exit status 127)",
		},
		{"needs a newer glibc", "echo \"$0: version 'GLIBC_2.34' not found\" >&2; exit 1", "crashed: version 'GLIBC_2.34' not found"},
		{"dies of a signal", "kill -SEGV $$", "the NVML probe crashed: signal: segmentation fault"},
		{"fails without a word", "exit 5", "the NVML probe crashed: exit status 5"},
		{"writes escape sequences", `printf 'a\033[31mb\n' >&2; exit 2`, "crashed: ab ("},
		{"prints nothing", "true", "read NVML report: unexpected end of JSON input"},
		{"prints garbage", "echo oops", "read NVML report: invalid character"},
		{"speaks another schema", `echo '{"schema":2,"ok":true}'`, "it has schema 2, but this kbnode reads 1"},
		{"contradicts itself", `echo '{"schema":1,"ok":false}'`, "exited with 0 but reports ok=false"},
		{"refuses", `echo '{"schema":1,"ok":false,"code":9,"error":"x"}'; exit 3`, "the NVIDIA driver is not loaded"},
		{"prints without end", "exec yes", "printed more than 8388608 bytes"},
		{"complains without end", "yes >&2; echo '" + empty + "'", "run the NVML probe: more than 65536 bytes"},
		{"has a clean environment", `[ "$(env | grep -c '^LD_')" = 0 ] && [ -z "$HOME" ] && echo '` + empty + "'", ""},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			_, err := Run(t.Context(), Options{Path: script(t, row.script)})
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("error %v, want %q in it", err, row.want)
			}
		})
	}
}

// The driver's library starts its own programs; they end with the probe.
func TestDeadlineEndsTheWholeGroup(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "fifo")
	must.Do(t, syscall.Mkfifo(fifo, 0o600))
	r, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that the open does not block
	must.Do(t, err)
	defer r.Close() //nolint:errcheck // only read
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	path := script(t, "exec 9>"+fifo+"; (echo up >&9; exec sleep 1000) & wait")
	go func() {
		_, err := Run(ctx, Options{Path: path, Timeout: time.Minute})
		done <- err
	}()
	// Our own write end would hide the end of the others: read through another file.
	reader, err := os.OpenFile(fifo, os.O_RDONLY, 0)
	must.Do(t, err)
	defer reader.Close() //nolint:errcheck // only read
	up := make([]byte, 3)
	if _, err := io.ReadFull(reader, up); err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := io.ReadAll(reader); err != nil { // blocks while the sleep runs
		t.Error(err)
	}
}

func TestOneAtATime(t *testing.T) {
	t.Parallel()
	busy := filepath.Join(t.TempDir(), "busy")
	path := script(t, "mkdir "+busy+" || exit 9; sleep 0.05; rmdir "+busy+"; echo '"+empty+"'")
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			if _, err := Run(t.Context(), Options{Path: path, Timeout: time.Minute}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}

// A probe stuck in a driver keeps the lock, no matter which process started it, and even
// when that process is gone.
func TestLock(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := script(t, "echo '"+empty+"'")
	held, err := os.OpenFile(filepath.Join(dir, lockName("")), os.O_CREATE|os.O_RDWR, 0o600)
	must.Do(t, err)
	must.Do(t, syscall.Flock(int(held.Fd()), syscall.LOCK_EX))
	_, err = Run(t.Context(), Options{Path: path, Timeout: 200 * time.Millisecond, runDir: dir})
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another NVML probe is still running") {
		t.Errorf("while another one runs: %v", err)
	}
	for _, gpu := range []string{"GPU-1", "MIG-GPU-1/1/0"} {
		if _, err := Run(t.Context(), Options{Path: path, Timeout: time.Minute, runDir: dir, GPU: gpu}); err != nil {
			t.Errorf("about %s meanwhile: %v", gpu, err)
		}
	}
	must.Do(t, held.Close())
	// The child has the lock itself: its own attempt to lock it fails.
	path = script(t, "flock -n "+dir+"/"+lockName("")+" true && exit 9; flock -n 3 || exit 8; echo '"+empty+"'")
	for range 2 { // and it is free again afterward
		if _, err := Run(t.Context(), Options{Path: path, Timeout: time.Minute, runDir: dir}); err != nil {
			t.Error(err)
		}
	}
}

// A probe inherits the lock and nothing else: programs that the driver's library starts
// would inherit it too.
func TestInheritsNothing(t *testing.T) {
	t.Parallel()
	path, done, err := inMemory(unpacked([]byte("#!/bin/sh\n")))()
	must.Do(t, err)
	defer done()
	fd, err := strconv.Atoi(filepath.Base(path))
	must.Do(t, err)
	if flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the probe itself is inherited by it: flags %x, %v", flags, err)
	}
	list := script(t, `for f in /proc/$$/fd/*; do case $(readlink "$f") in *memfd:*|*/`+lockName("")+`) test "${f##*/}" = 3 || exit 9; esac; done
flock -n 3 || exit 8; echo '`+empty+`'`)
	if _, err := Run(t.Context(), Options{Path: list, Timeout: time.Minute, runDir: t.TempDir()}); err != nil {
		t.Error(err)
	}
}

func unpacked(elf []byte) source {
	return func(w io.Writer) error {
		_, err := w.Write(elf)
		return err
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	elf, err := os.ReadFile(r.probe)
	must.Do(t, err)
	whole := unpacked(elf)
	file := func(name string, mode os.FileMode, data []byte) string {
		path := filepath.Join(t.TempDir(), name)
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		must.Do(t, os.WriteFile(path, data, 0o600))
		must.Do(t, os.Chmod(path, mode))
		return path
	}
	dir := t.TempDir()
	memory := place{"memfd", inMemory(whole)}
	for _, row := range []struct {
		name string
		from []place
		want string // in the error; "" is none
	}{
		{"installed", []place{{"libexec", installed(file("probe", 0o755, elf), whole)}}, ""},
		{"installed is another version", []place{{"libexec", installed(file("probe", 0o755, elf[1:]), whole)}}, "libexec: another version"},
		{"anybody can write what is installed", []place{{"libexec", installed(file("probe", 0o777, elf), whole)}}, "libexec: not a regular file that only root can write"},
		{"nothing is installed", []place{{"libexec", installed(dir+"/none", whole)}, memory}, ""},
		{"memory", []place{memory}, ""},
		{"a directory", []place{{"run", inDir(dir, whole)}}, ""},
		{"a directory that cannot be made", []place{{"run", inDir(file("f", 0o600, nil)+"/d", whole)}}, "run: mkdir"},
		{"execution is forbidden in the first place", []place{{"noexec", atPath(file("probe", 0o600, elf))}, memory}, ""},
		{"execution is forbidden everywhere", []place{{"noexec", atPath(file("probe", 0o600, elf))}}, "noexec: fork/exec"},
		{
			"no glibc", []place{{"memfd", inMemory(unpacked(bytes.ReplaceAll(bytes.ReplaceAll(elf,
				[]byte("/ld-linux-x86-64.so.2\x00"), []byte("/ld-linux-x86-64.so.X\x00")),
				[]byte("/ld-linux-aarch64.so.1\x00"), []byte("/ld-linux-aarch64.so.X\x00"))))}},
			ErrNoLoader.Error(),
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			opts := r.options(t, "driver", "")
			opts.Path, opts.runDir = "", t.TempDir()
			report, err := runAny(t.Context(), opts, row.from)
			switch {
			case row.want == "" && err != nil:
				t.Error(err)
			case row.want == "" && len(report.GPUs) != 8:
				t.Errorf("%d GPUs, want 8", len(report.GPUs))
			case row.want != "" && (err == nil || !strings.Contains(err.Error(), row.want)):
				t.Errorf("error %v, want %q in it", err, row.want)
			}
		})
	}
	t.Cleanup(func() {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left behind: %v", left)
		}
	})
}

func TestImage(t *testing.T) {
	t.Parallel()
	elf, err := image()
	if errors.Is(err, ErrNotEmbedded) {
		if _, err := Run(t.Context(), Options{}); !errors.Is(err, ErrNotEmbedded) {
			t.Errorf("run without a probe: %v", err)
		}
		return
	}
	var program bytes.Buffer
	if err == nil {
		err = elf(&program)
	}
	if err != nil || !bytes.HasPrefix(program.Bytes(), []byte("\x7fELF")) {
		t.Errorf("the embedded probe is no program: %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(empty))
	f.Add([]byte(`{"schema":1,"ok":true,"gpus":[{"index":1,"minor":null,"mig":[{}]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Parse(data)
		if (r == nil) == (err == nil) {
			t.Errorf("report %v, error %v", r, err)
		}
		if p := text.Line(string(data), 40); len(p) > 4*40 || strings.ContainsAny(p, "\x00\x1b\n\r") {
			t.Errorf("%q is not printable", p)
		}
	})
}

// Not parallel, because the kept probe belongs to the process.
func TestKeep(t *testing.T) {
	r := needRig(t)
	elf, err := os.ReadFile(r.probe)
	must.Do(t, err)
	file := filepath.Join(t.TempDir(), "probe")
	write := func(data []byte) {
		syscall.ForkLock.RLock()
		defer syscall.ForkLock.RUnlock()
		must.Do(t, os.WriteFile(file, data, 0o700))
	}
	write(elf)
	times := 0
	counted := source(func(w io.Writer) error { times++; return unpacked(elf)(w) })
	for _, from := range []place{{"memfd", inMemory(counted)}, {"libexec", installed(file, counted)}} {
		for _, keep := range []bool{false, true} {
			if times = 0; keep {
				Keep()
			}
			for range 3 {
				opts := r.options(t, "driver", "")
				opts.Path, opts.runDir = "", t.TempDir()
				if report, err := runAny(t.Context(), opts, []place{from}); err != nil || len(report.GPUs) != 8 {
					t.Fatalf("%s: %v", from.name, err)
				}
			}
			if want := map[bool]int{false: 3, true: 1}[keep]; times != want {
				t.Errorf("%s, keep %t: unpacked %d times, want %d", from.name, keep, times, want)
			}
		}
		if from.name == "libexec" { // someone replaces the file
			write(elf[1:])
			if _, _, err := from.prepare(); err == nil {
				t.Error("another file is taken for the probe")
			}
		}
		_ = kept.mem.Close()
		kept = keeper{}
	}
}
