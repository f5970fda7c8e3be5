package selftest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/selftest/hostile"
)

// senders is how many requests go to a guard at once, of those that create no container.
const senders = 4

// slow reports whether a request needs only time.
func slow(r hostile.Request) bool { return r.Patience >= 30*time.Second }

// slowClients sends what a guard must cut off after a while. These requests need no
// container, so they run in all slots at once, before anything else.
func (s *trial) slowClients(ctx context.Context) <-chan []Check {
	done := make(chan []Check, 1)
	var group sync.WaitGroup
	var mu sync.Mutex
	var checks []Check
	for _, r := range hostile.Requests() {
		if slow(r) {
			group.Go(func() {
				c := s.send(ctx, r, hostile.Target{Own: "none", Other: "none"})
				mu.Lock()
				defer mu.Unlock()
				checks = append(checks, c)
			})
		}
	}
	go func() {
		group.Wait()
		if ctx.Err() != nil {
			checks = nil // we cut them off
		}
		done <- checks
	}()
	return done
}

// requests sends the whole table to the slot's guard.
func (s *trial) requests(ctx context.Context) ([]Check, error) {
	s.add(s.listener())
	target, err := s.target(ctx)
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var checks []Check
	keep := func(c Check) {
		mu.Lock()
		defer mu.Unlock()
		checks = append(checks, c)
	}
	places := make(chan struct{}, senders)
	var group sync.WaitGroup
	for _, r := range hostile.Requests() {
		if slow(r) || ctx.Err() != nil {
			continue
		}
		if r.Want == hostile.Rebuilt || r.Want == hostile.Contained {
			keep(s.rebuilt(ctx, r, target))
			continue
		}
		places <- struct{}{}
		group.Go(func() {
			defer func() { <-places }()
			keep(s.send(ctx, r, target))
		})
	}
	group.Wait()
	made, err := s.madeByRefused(ctx, target)
	return append(checks, made...), err
}

func (s *trial) check(r hostile.Request, saw string, held bool) Check {
	c := Check{Group: "requests", Tried: r.Group + ": " + r.Name, Saw: saw, Held: held}
	if !held {
		c.Do = s.hint()
	}
	return c
}

func (s *trial) send(ctx context.Context, r hostile.Request, target hostile.Target) Check {
	answer, err := r.Send(ctx, s.policy.Socket, target)
	if err != nil {
		return s.check(r, err.Error(), false)
	}
	saw, held := r.Check(answer, target)
	if id := answer.Created(); id != "" {
		// It should not exist, and its name would block other requests.
		if err := s.t.engine.Discard(ctx, id); err != nil {
			saw += "; " + err.Error()
		}
	}
	return s.check(r, saw, held)
}

// rebuilt sends a request for a container, and checks what the engine made.
func (s *trial) rebuilt(ctx context.Context, r hostile.Request, target hostile.Target) Check {
	answer, err := r.Send(ctx, s.policy.Socket, target)
	if err != nil {
		return s.check(r, err.Error(), false)
	}
	saw, held := r.Check(answer, target)
	id := answer.Created()
	if id == "" {
		return s.check(r, saw, held)
	}
	faults, err := s.faults(ctx, id)
	if err = errors.Join(err, s.t.engine.Discard(ctx, id)); err != nil {
		return s.check(r, err.Error(), false)
	}
	if len(faults) > 0 {
		return s.check(r, "a container was created: "+strings.Join(faults, "; "), false)
	}
	return s.check(r, "a container with the slot's policy, regardless of the request", held)
}

// faults compares a container, as the engine has it, with the plan.
func (s *trial) faults(ctx context.Context, id string) ([]string, error) {
	in, err := s.t.engine.Inspect(ctx, id)
	if err != nil {
		return nil, err
	}
	if in.Config == nil || in.HostConfig == nil {
		return nil, fmt.Errorf("the engine does not report the configuration of container %s", id)
	}
	return hostile.Faults(s.policy, in.Config, in.HostConfig), nil
}

// name returns the name of a container of this slot in the engine.
func (s *trial) name(what string) string { return hostile.Name + "-" + s.plan.Name + "-" + what }

// prefix is what the slot's guard puts before the names of containers.
func (s *trial) prefix() string { return "kbnode-" + s.plan.Name + "-" }

// target creates what the requests aim at: a container of the slot, one of no slot with a
// label that claims the slot, and a directory with links out of it.
func (s *trial) target(ctx context.Context) (hostile.Target, error) {
	t := hostile.Target{
		Image: image, OtherName: s.name("other"), OtherGPU: "GPU-00000000-0000-0000-0000-000000000000",
		OtherSlice: "system.slice", OtherWork: "/var/lib/kbnode",
		WorkRoot: s.policy.WorkRoot, Socket: s.policy.Socket, EngineSocket: s.policy.DockerSocket,
	}
	if other := s.otherSlot(); other != nil {
		if len(other.GPUs) > 0 {
			t.OtherGPU = other.GPUs[0].Name()
		}
		t.OtherSlice, t.OtherWork = plan.SliceName(other.Index), plan.WorkDir(other.Index)
	}
	t.Node, _ = os.Hostname()
	checkout, err := s.checkout(t.OtherWork)
	if err != nil {
		return t, err
	}
	t.Checkout, t.OutLink, t.OtherLink = checkout, checkout+"/out", checkout+"/other"
	t.Other, err = s.t.engine.Create(ctx, docker.Run{
		Name: t.OtherName, Image: image, Cmd: []string{"true"}, Slice: "system.slice",
		Labels: map[string]string{"kbnode.slot": strconv.Itoa(s.plan.Index)},
	})
	if err != nil {
		return t, err
	}
	own, closeOwn, err := s.guarded()
	if err != nil {
		return t, err
	}
	defer closeOwn()
	t.Own, err = own.Create(ctx, docker.Run{Name: s.name("own"), Image: image, Cmd: []string{"true"}})
	return t, err
}

// guarded returns the engine as the slot's jobs see it.
func (s *trial) guarded() (*docker.Engine, func(), error) {
	e, err := docker.New(s.policy.Socket)
	if err != nil {
		return nil, nil, err
	}
	return e, func() { _ = e.Close() }, nil
}

// otherSlot returns the next slot, wrapping around, or nil if there is only one.
func (s *trial) otherSlot() *plan.Slot {
	all := s.t.Plan.Slots
	if len(all) < 2 {
		return nil
	}
	i := slices.IndexFunc(all, func(p plan.Slot) bool { return p.Index == s.plan.Index })
	return &all[(i+1)%len(all)]
}

// madeByRefused looks for what refused requests created, and checks that the target's two
// containers still exist and were never started.
func (s *trial) madeByRefused(ctx context.Context, target hostile.Target) ([]Check, error) {
	traces, err := s.t.engine.Traces(ctx, hostile.Name)
	if err != nil {
		return nil, err
	}
	var strange []string
	for _, tr := range traces {
		ours := tr.Kind == "image" && tr.Name == image ||
			tr.Kind == "container" && strings.Contains(tr.Name, hostile.Name+"-gpu")
		// Other slots' guards put their own prefixes before the names of containers.
		theirs := strings.HasPrefix(tr.Name, "kbnode-gpu") && !strings.HasPrefix(tr.Name, s.prefix())
		if !ours && !theirs {
			strange = append(strange, tr.Kind+" "+tr.Name)
		}
	}
	const group, tried = "requests", "leftovers of refused requests"
	checks := []Check{{Group: group, Tried: tried, Saw: "nothing", Held: true}}
	if len(strange) > 0 {
		checks[0] = Check{Group: group, Tried: tried, Saw: strings.Join(strange, ", "), Do: s.hint()}
	}
	for what, id := range map[string]string{"its own container": target.Own, "another slot's container": target.Other} {
		c := Check{Group: group, Tried: what + ", afterward", Saw: "unchanged", Held: true}
		in, err := s.t.engine.Inspect(ctx, id)
		switch {
		case errors.Is(err, docker.ErrNotFound):
			c.Saw, c.Held, c.Do = "gone", false, s.hint()
		case err != nil:
			return checks, err
		case in.State == nil || in.State.Status != "created":
			c.Saw, c.Held, c.Do = "started or stopped", false, s.hint()
		}
		checks = append(checks, c)
	}
	return checks, nil
}

// checkout makes a directory among the slot's checkouts, with links that lead out of it. It
// follows no links, because the slot's user could replace any part of the path.
func (s *trial) checkout(other string) (string, error) {
	root, err := os.OpenRoot(s.policy.WorkRoot)
	if err != nil {
		return "", fmt.Errorf("make a checkout: %w", err)
	}
	defer func() { _ = root.Close() }()
	name := hostile.Name
	user, ok := s.t.machine.users[s.plan.User]
	if !ok {
		return "", fmt.Errorf("make a checkout: the slot's user %s does not exist; run kbnode reconcile", s.plan.User)
	}
	err = errors.Join(root.RemoveAll(name), root.Mkdir(name, 0o700), root.Symlink("/", name+"/out"), root.Symlink(other, name+"/other"), root.Lchown(name, user.UID, user.GID))
	if err != nil {
		return "", fmt.Errorf("make a checkout: %w", err)
	}
	return s.policy.WorkRoot + "/" + name, nil
}

// tidy removes what this slot's part has created, so that a job finds none of it.
func (s *trial) tidy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
	defer cancel()
	traces, err := s.t.engine.Traces(ctx, hostile.Name)
	for _, tr := range traces {
		if tr.Kind == "container" && (strings.Contains(tr.Name, s.name("")) || tr.Name == s.prefix()+hostile.Name+"-attack") {
			err = errors.Join(err, s.t.engine.Erase(ctx, tr))
		}
	}
	if root, openErr := os.OpenRoot(s.policy.WorkRoot); openErr == nil {
		err = errors.Join(err, root.RemoveAll(hostile.Name), root.Close())
	}
	if err != nil {
		s.t.Log.Warn("something is left behind; the next selftest removes it", "slot", s.plan.Name, "err", err)
	}
}
