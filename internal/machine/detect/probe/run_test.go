package probe

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
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
			_, err := Run(t.Context(), Options{Path: script(t, row.script), Timeout: must.Patience})
			must.Err(t, err, row.want)
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
		_, err := Run(ctx, Options{Path: path, Timeout: must.Patience})
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
			if _, err := Run(t.Context(), Options{Path: path, Timeout: must.Patience}); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}

// One process at a time reads all GPUs. A probe of one that is stuck in a driver keeps the lock, no matter which process
// started it, and even when that process is gone.
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
		if _, err := Run(t.Context(), Options{Path: path, Timeout: must.Patience, runDir: dir, GPU: gpu}); err != nil {
			t.Errorf("about %s meanwhile: %v", gpu, err)
		}
	}
	must.Do(t, held.Close())
	// The child has the lock itself: its own attempt to lock it fails.
	path = script(t, "flock -n "+dir+"/"+lockName("GPU-1")+" true && exit 9; flock -n 3 || exit 8; echo '"+empty+"'")
	for range 2 { // and it is free again afterward
		if _, err := Run(t.Context(), Options{Path: path, Timeout: must.Patience, runDir: dir, GPU: "GPU-1"}); err != nil {
			t.Error(err)
		}
	}
}

// TestStuckSetting has a probe of one GPU that cannot be killed. All GPUs are read nevertheless, and others asked for.
func TestStuckSetting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	release, _, err := acquire(t.Context(), filepath.Join(dir, lockName("GPU-3")))
	must.Do(t, err)
	defer release()
	path := script(t, "echo '"+empty+"'")
	for _, gpu := range []string{"", "GPU-2"} {
		if _, err := Run(t.Context(), Options{Path: path, Timeout: must.Patience, runDir: dir, GPU: gpu}); err != nil {
			t.Errorf("about %q: %v", gpu, err)
		}
	}
	_, err = Run(t.Context(), Options{Path: path, Timeout: 200 * time.Millisecond, runDir: dir, GPU: "GPU-3"})
	must.Err(t, err, "another NVML probe is still running")
}

// A probe inherits the GPUs' locks and nothing else: programs that the driver's library starts
// would inherit it too.
func TestInheritsNothing(t *testing.T) {
	t.Parallel()
	f, err := inMemory(unpacked([]byte("#!/bin/sh\n")))
	must.Do(t, err)
	if flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0); err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the probe itself is inherited by it: flags %x, %v", flags, err)
	}
	list := script(t, `for f in /proc/$$/fd/*; do case $(readlink "$f") in *memfd:*|*/nvml*.lock) test "${f##*/}" = 3 || exit 9; esac; done
flock -n 3 || exit 8; echo '`+empty+`'`)
	_, err = Run(t.Context(), Options{Path: list, Timeout: must.Patience, runDir: t.TempDir()})
	must.Do(t, err)
}

// TestManyFiles starts the anonymous probe in a child whose files take the number that it has here.
func TestManyFiles(t *testing.T) {
	t.Parallel()
	elf := []byte(must.Read(t, "/bin/true"))
	f, err := inMemory(unpacked(elf))
	must.Do(t, err)
	null, err := os.Open(os.DevNull)
	must.Do(t, err)
	defer null.Close() //nolint:errcheck // only read
	cmd := exec.CommandContext(t.Context(), pathOf(f))
	for range f.Fd() {
		cmd.ExtraFiles = append(cmd.ExtraFiles, null)
	}
	must.Do(t, cmd.Run())
}

func unpacked(elf []byte) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := w.Write(elf)
		return err
	}
}

// TestInMemory runs the probe from an anonymous file.
func TestInMemory(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	elf := []byte(must.Read(t, r.probe))
	none := bytes.ReplaceAll(bytes.ReplaceAll(elf,
		[]byte("/ld-linux-x86-64.so.2\x00"), []byte("/ld-linux-x86-64.so.X\x00")),
		[]byte("/ld-linux-aarch64.so.1\x00"), []byte("/ld-linux-aarch64.so.X\x00"))
	for _, row := range []struct {
		name string
		elf  []byte
		want error
	}{{"the probe", elf, nil}, {"no glibc", none, ErrNoLoader}} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			f, err := inMemory(unpacked(row.elf))
			must.Do(t, err)
			opts := r.options(t, "driver", "")
			opts.Path = pathOf(f)
			if report, err := Run(t.Context(), opts); !errors.Is(err, row.want) || err == nil && len(report.GPUs) != 8 {
				t.Errorf("%+v, %v", report, err)
			}
		})
	}
	if _, err := inMemory(func(io.Writer) error { return io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a probe that is cut off: %v", err)
	}
}

// TestProgram prefers the file of a package to the embedded probe.
func TestProgram(t *testing.T) {
	t.Parallel()
	installed := script(t, "")
	if path, err := (&source{installed: installed}).path(); err != nil || path != installed {
		t.Errorf("installed: %s, %v", path, err)
	}
	path, err := (&source{installed: "/not/there", embedded: standard.embedded}).path()
	if errors.Is(err, ErrNotEmbedded) {
		return
	}
	must.Do(t, err)
	if text := must.Read(t, path); !strings.HasPrefix(text, "\x7fELF") {
		t.Error("the embedded probe is no program")
	}
}

// TestOtherVersion has the package of another version beside this kbnode, whose probe prints something else.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	starts := filepath.Join(t.TempDir(), "starts")
	installed := script(t, "echo >>"+starts+`; printf '{\n  "schema": 1,\n  "ok": true,\n  "gpus": []\n}\n'`)
	s := &source{installed: installed, embedded: func() (*os.File, error) { return nil, ErrNotEmbedded }}
	opts := Options{source: s, Timeout: must.Patience, runDir: t.TempDir()}
	_, err := Run(t.Context(), opts)
	must.Err(t, err, "read NVML report: unexpected end of JSON input")
	s.embedded = sync.OnceValues(func() (*os.File, error) { return inMemory(unpacked([]byte("#!/bin/sh\necho '" + empty + "'"))) })
	for range 2 {
		_, err = Run(t.Context(), opts)
		must.Do(t, err)
	}
	must.Equal(t, "\n\n", must.Read(t, starts)) // it is not tried again

	s.embedded = sync.OnceValues(func() (*os.File, error) { return inMemory(unpacked([]byte("#!/bin/sh\necho oops"))) })
	s.other.Store(false)
	_, err = Run(t.Context(), opts)
	must.Err(t, err, "read NVML report: invalid character")
}

// TestDocument runs the probe as versions of kbnode do that want one document about all GPUs.
func TestDocument(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	cmd := exec.CommandContext(t.Context(), r.probe)
	cmd.Env = r.options(t, "driver", "count = 3").Env
	text, err := cmd.Output()
	must.Do(t, err)
	report, err := Parse(text)
	must.Do(t, err)
	must.Equal(t, []int{0, 1, 2}, indices(report))
	if !report.OK || report.Count != 0 || report.GPUs[2].UUID == "" {
		t.Errorf("%+v", report)
	}
}

const gpu3 = "GPU-00000000-0000-4000-8000-000000000003"

// A setting of one GPU affects only that GPU, and stays.
func TestSet(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	for _, row := range []struct {
		name, variant, config string
		set                   []nvml.Setting
		appended              []string // lines that the fake appended
		err                   string
	}{
		{
			"persistence and clocks", "driver", "persistence = 0\n",
			[]nvml.Setting{{GPU: gpu3, Name: nvml.SetPersistence, Value: "on"}, {GPU: gpu3, Name: nvml.SetClocks, Value: "1410"}, {GPU: gpu3, Name: nvml.SetClocks, Value: "base"}, {GPU: gpu3, Name: nvml.SetClocks, Value: "default"}},
			[]string{"gpu.3.persistence = 1", "gpu.3.locked_clocks = 1410-1410", "gpu.3.locked_clocks = tdp", "gpu.3.locked_clocks = none"}, "",
		},
		{"a clock that it does not have", "driver", "", []nvml.Setting{{GPU: gpu3, Name: nvml.SetClocks, Value: "9999"}}, nil, "nvmlDeviceSetGpuLockedClocks: "},
		{"a driver that cannot lock", "nosym", "", []nvml.Setting{{GPU: gpu3, Name: nvml.SetPersistence, Value: "on"}, {GPU: gpu3, Name: nvml.SetClocks, Value: "base"}}, []string{"gpu.3.persistence = 1"}, "nvmlDeviceSetGpuLockedClocks: "},
		{"not supported", "driver", "gpu.3.fail.nvmlDeviceSetPersistenceMode = 3\n", []nvml.Setting{{GPU: gpu3, Name: nvml.SetPersistence, Value: "on"}}, nil, "nvmlDeviceSetPersistenceMode: Not Supported"},
		{"lost", "driver", "gpu.3.handle = 15\n", []nvml.Setting{{GPU: gpu3, Name: nvml.SetClocks, Value: "base"}}, nil, "nvmlDeviceGetHandleByUUID: GPU is lost"},
		{"its neighbour is lost", "driver", "gpu.2.error = 15\n", []nvml.Setting{{GPU: gpu3, Name: nvml.SetPersistence, Value: "off"}}, []string{"gpu.3.persistence = 0"}, ""},
		{"no driver", "driver", "init = 9\n", []nvml.Setting{{GPU: gpu3, Name: nvml.SetPersistence, Value: "on"}}, nil, "the NVIDIA driver is not loaded"},
		{"another name", "driver", "", []nvml.Setting{{GPU: gpu3, Name: "power", Value: "1"}}, nil, `power cannot be set to "1"`},
		{"no number", "driver", "", []nvml.Setting{{GPU: gpu3, Name: nvml.SetClocks, Value: "max"}}, nil, `clocks cannot be set to "max"`},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			opts := r.options(t, row.variant, row.config)
			opts.Timeout = must.Patience
			var err error
			for _, s := range row.set {
				if err = Set(t.Context(), opts, s); err != nil {
					break
				}
			}
			must.Err(t, err, row.err)
			file := strings.TrimPrefix(opts.Env[1], "KBNODE_FAKE_NVML=")
			text := must.Read(t, file)
			var appended []string
			if added := strings.TrimPrefix(text, row.config); added != "" {
				appended = strings.Split(strings.TrimSpace(added), "\n")
			}
			must.Equal(t, row.appended, appended)
		})
	}
}
