package selftest

import (
	"archive/tar"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/selftest/hostile"
)

func TestEmptyRoot(t *testing.T) {
	t.Parallel()
	archive, err := emptyRoot()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir {
			t.Errorf("%s is no directory", h.Name)
		}
		got = append(got, h.Name)
	}
	if !slices.Contains(got, "tmp/") || !slices.Contains(got, "usr/local/bin/") {
		t.Errorf("has %q", got)
	}
}

// TestCheckout makes the directory that the requests aim at, even if the slot's user has
// put something else in its place.
func TestCheckout(t *testing.T) {
	t.Parallel()
	s := &trial{t: &tester{}, plan: plan.Slot{User: "kbnode-gpu1"}, policy: plan.JobPolicy{WorkRoot: t.TempDir()}}
	if _, err := s.checkout("/x"); err == nil || !strings.Contains(err.Error(), "kbnode-gpu1 does not exist") {
		t.Errorf("without a user: %v", err)
	}
	s.t.machine.users = map[string]reconcile.UserState{"kbnode-gpu1": {UID: os.Getuid(), GID: os.Getgid()}}
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(s.policy.WorkRoot, hostile.Name)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		dir, err := s.checkout("/x")
		if err != nil {
			t.Fatal(err)
		}
		out, err1 := os.Readlink(dir + "/out")
		other, err2 := os.Readlink(dir + "/other")
		if err := errors.Join(err1, err2); err != nil || out != "/" || other != "/x" {
			t.Errorf("links to %q and %q, %v", out, other, err)
		}
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 0 {
		t.Errorf("followed a link: %v, %v", left, err)
	}
}

func TestListener(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "s")
	s := &trial{plan: plan.Slot{Name: "gpu1", Index: 1}, policy: plan.JobPolicy{Socket: path}}
	if c := s.listener(); c.Held || c.Do == "" {
		t.Errorf("nobody listens: %+v", c)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	s.state.Guard.MainPID = os.Getpid()
	if c := s.listener(); !c.Held || c.Do != "" {
		t.Errorf("the guard listens: %+v", c)
	}
	s.state.Guard.MainPID = 1
	if c := s.listener(); c.Held || !strings.Contains(c.Saw, "selftest.test") {
		t.Errorf("somebody else listens: %+v", c)
	}
}

func TestReadMachine(t *testing.T) {
	t.Parallel()
	own := plan.Slot{Index: 0, GPUs: []plan.SlotGPU{{Devices: []string{"/dev/null"}}}}
	m := readMachine(&plan.Plan{Slots: []plan.Slot{own, {Index: 1, GPUs: []plan.SlotGPU{{Devices: []string{"/dev/zero", "/dev/nonexistent"}}}}}})
	others := m.others(own)
	if slices.Contains(others, "/dev/null") || !slices.Contains(others, "/dev/zero") || slices.Contains(others, "/dev/nonexistent") {
		t.Errorf("of others are %q", others)
	}
	for _, n := range numbers(others) {
		if n.Name == "/dev/zero" && (n.Major != 1 || n.Minor != 5 || n.Block) {
			t.Errorf("%+v", n)
		}
		if strings.Contains(n.Name, "watchdog") {
			t.Error("a watchdog would be started")
		}
	}
}
