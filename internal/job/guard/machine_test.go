package guard

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestCallers answers only root and the slot's user.
func TestCallers(t *testing.T) {
	t.Parallel()
	own := os.Getuid()
	for name, row := range map[string]struct {
		root, uid int
		says      string
	}{
		"the slot's user": {-1, own, "knows no request"},
		"root":            {own, -1, "knows no request"},
		"somebody else":   {-1, -1, "only root and the slot's user"},
	} {
		r := newRig(t, func(r *rig) { r.root, r.adjust = row.root, func(g *guard) { g.uid = row.uid } })
		if o := r.ask(t, 'x', ""); !strings.Contains(why(o), row.says) {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// TestClearRequest goes through the socket: only root may clear the slot, and who goes away waits no longer.
func TestClearRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	run := filepath.Dir(r.socket)
	for _, when := range []string{slot.ClearStart, slot.ClearEnded, ""} {
		if o := r.ask(t, slot.RequestClear, when); !strings.Contains(o.Refused, "only the agent's unit may do this") {
			t.Errorf("as the slot's user: %+v", o)
		}
	}
	must.Do(t, bootstrap.Report(t.Context(), r.socket, slot.RegisteredName))
	must.Err(t, bootstrap.Report(t.Context(), r.socket, "../lock"), "an agent reports no")
	_, err := os.Lstat(filepath.Join(run, slot.RegisteredName))
	must.Do(t, err)
	r.change(asRoot)
	must.Do(t, bootstrap.Clear(t.Context(), r.socket))
	if _, err := os.Lstat(filepath.Join(run, slot.RegisteredName)); err == nil {
		t.Error("the next agent begins as one that has registered")
	}
	token, err := os.ReadFile(filepath.Join(run, plan.TokenName))
	if info, err2 := os.Stat(filepath.Join(run, plan.TokenName)); err != nil || err2 != nil || info.Mode() != 0o600 || !strings.Contains(string(token), "\nBUILDKITE_AGENT_TOKEN=secret-token\n") {
		t.Errorf("%s, %v, %v, %v", token, info.Mode(), err, err2)
	}
	r.limit(t, "memory.max", "max")
	must.Err(t, bootstrap.Clear(t.Context(), r.socket), "memory.max")
	r.limit(t, "memory.max", "34359738368")
	_, err = park(run, "x", "maintenance")
	must.Do(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := bootstrap.Clear(ctx, r.socket); err == nil {
		t.Error("a parked slot takes jobs")
	}
	// What a job left when its process was killed goes with its agent, also where no other agent follows.
	r.limit(t, "memory.max", "max")
	r.engine.add(jobContainer, r.guard(t).newName(), r.policy.Slice)
	must.Do(t, bootstrap.ClearEnded(t.Context(), r.socket))
	must.Equal(t, 0, len(r.engine.containers))
	r.ended.Wait()
}

// TestRefusedUnread: a client also gets the answer to a request that the slot did not read.
func TestRefusedUnread(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	spec := rootSpec("0190")
	spec.Env = []job.Var{{Name: "X", Value: strings.Repeat("x", job.MaxSpec)}}
	o, err := bootstrap.RunSpec(t.Context(), r.socket, spec, func(slot.FrameKind, []byte) {})
	if err != nil || !strings.Contains(o.Refused, "send fewer variables") {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestRemountPts bounds terminals in another mount namespace, and never the host's.
func TestRemountPts(t *testing.T) {
	t.Parallel()
	must.Root(t, "needs root")
	if err := remountPts("/proc/self", 16); err == nil {
		t.Fatal("the host's terminals are limited")
	}
	// One that has chosen another root.
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", `mount -t devpts -o newinstance,gid=5,mode=620,ptmxmode=666 devpts /dev/pts &&
		mount --bind / "$0" && chroot "$0" sh -c 'echo $$ && read x' && grep ' /dev/pts ' /proc/self/mountinfo`, t.TempDir())
	in, _ := cmd.StdinPipe()
	var out syncBuffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Skip(err)
	}
	must.Until(t, "the process", func() bool { return strings.Contains(out.String(), "\n") })
	s := slotProcs{root: t.TempDir(), proc: "/proc", slice: "s"}
	const absent = "4194305\n" // more than the kernel's greatest
	for _, list := range []string{absent, absent + out.String()} {
		must.Do(t, errors.Join(os.MkdirAll(s.container("x"), 0o700), os.WriteFile(filepath.Join(s.container("x"), "cgroup.procs"), []byte(list), 0o600)))
		if err := s.limitPtys("x"); (err == nil) != (list != absent) {
			t.Errorf("processes %q: %v", list, err)
		}
	}
	_, _ = in.Write([]byte("go\n"))
	if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "gid=5,mode=620,ptmxmode=666,max=256") {
		t.Errorf("%v: %s", err, out.String())
	}
}
