package probe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// rig is the real probe and the fakes of NVIDIA's library, built once.
type rig struct {
	dir, probe string
	skip       string // why there is none
}

var built = sync.OnceValues(func() (rig, error) {
	for _, tool := range []string{"gcc", "go"} {
		if _, err := exec.LookPath(tool); err != nil {
			return rig{skip: "no " + tool}, nil
		}
	}
	if out, _ := exec.Command("go", "env", "CGO_ENABLED").Output(); strings.TrimSpace(string(out)) != "1" {
		return rig{skip: "CGO_ENABLED is not 1"}, nil
	}
	dir, err := os.MkdirTemp("", "kbnode-nvml-")
	if err != nil {
		return rig{}, err
	}
	r := rig{dir: dir, probe: filepath.Join(dir, "kbnode-nvml")}
	build := exec.Command("go", "build", "-ldflags", "-s -w -extldflags=-Wl,-z,lazy", "-o", r.probe, "../../../../cmd/kbnode-nvml")
	build.Env = append(os.Environ(), "CGO_CFLAGS=-O1 -Wno-deprecated-declarations")
	steps := []*exec.Cmd{build}
	for _, variant := range []string{"driver", "nosym", "hang"} {
		lib := filepath.Join(dir, variant, "libnvidia-ml.so.1")
		if err := os.Mkdir(filepath.Dir(lib), 0o700); err != nil {
			return rig{}, err
		}
		steps = append(steps, exec.Command("../../../../test/nvml/build.sh", lib, strings.TrimPrefix(variant, "driver")))
	}
	for _, step := range steps {
		if out, err := step.CombinedOutput(); err != nil {
			return r, fmt.Errorf("%v: %w\n%s", step.Args, err, out)
		}
	}
	return r, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if r, _ := built(); r.dir != "" {
		_ = os.RemoveAll(r.dir)
	}
	os.Exit(code)
}

// needRig skips the test if nothing can be compiled.
func needRig(t *testing.T) rig {
	t.Helper()
	r, err := built()
	must.Do(t, err)
	if r.skip != "" {
		t.Skip(r.skip)
	}
	return r
}

// options returns Options to run the real probe against a fake with these lines in its
// file.
func (r rig) options(t *testing.T, variant, config string) Options {
	t.Helper()
	file := filepath.Join(t.TempDir(), "fake-nvml.conf")
	must.Do(t, os.WriteFile(file, []byte(config), 0o600))
	return Options{
		Path: r.probe,
		Env:  []string{"LD_LIBRARY_PATH=" + filepath.Join(r.dir, variant), "KBNODE_FAKE_NVML=" + file},
	}
}

// script writes a program to use as the probe. No fork may happen meanwhile: a child of
// another test would briefly hold the file open for writing, and Linux does not execute
// such a file.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "probe")
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	must.Program(t, path, "#!/bin/sh\n"+text)
	return path
}
