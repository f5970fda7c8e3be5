package image

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

//go:embed smoke.py
var smoke string

const submission = `def custom_kernel(data):
    return [2 * n for n in data]
`

const (
	// canaryName names a canary's container, after the prefix of its slot, and its
	// directory among the checkouts.
	canaryName = "kbnode-canary"
	maxResult  = 4 << 20 // bytes of a result.json
	maxReason  = 300     // bytes
	tidyTime   = 2 * time.Minute
)

// ErrNoNode means that there are no slots.
var ErrNoNode = errors.New("this machine is not set up as a node; type sudo kbnode install")

// Machine is the node that kbnode runs on.
type Machine struct {
	Policies []plan.JobPolicy // of its slots
	Engine   *docker.Engine

	mu  sync.Mutex
	own map[int]string // by slot: cgroup of the canary that runs in it
}

// OpenMachine reads this machine's slots from the policies of their guards.
func OpenMachine(engine *docker.Engine) (*Machine, error) {
	policies, err := slot.ReadPolicies("/")
	if err != nil {
		return nil, err
	}
	return &Machine{Engine: engine, Policies: policies}, nil
}

// Slots returns the state of all slots of the machine.
func (m *Machine) Slots(context.Context) ([]Slot, error) {
	drains, err := readDrains()
	if err != nil {
		return nil, err
	}
	var list []Slot
	for _, p := range m.Policies {
		s := Slot{Index: p.Slot, Name: p.Name}
		slice := "/" + plan.ParentSlice + "/" + p.Slice
		now, err := slot.State{
			Index: p.Slot, Agent: slot.Unit{Cgroup: slice + "/" + plan.AgentUnit(p.Slot)}, Slice: slot.Slice{Cgroup: slice},
		}.Look("/").Runs("/")
		if err != nil {
			return nil, err
		}
		own := m.canaryOf(p.Slot)
		containers := slices.DeleteFunc(now.Containers, func(c string) bool { return c == own })
		switch {
		case now.Job != nil:
			s.Job = "job " + now.Job.ID
		case len(containers) > 0:
			s.Job = "container " + containers[0]
		}
		if i := slices.IndexFunc(drains, func(d plan.Drain) bool { return d.Slot == p.Slot && d.By != plan.ByOperator }); i >= 0 {
			// A slot that an operator drained may be used; canaries may be the reason.
			s.Away = drains[i].String()
		} else if len(now.Parked) > 0 {
			s.Away = "it is parked: " + now.Parked[0].Reason
		} else if _, err := os.Stat(p.Socket); err != nil {
			s.Away = "its Docker socket is missing; systemctl status " + plan.GuardUnit(p.Slot) + " says why"
		}
		list = append(list, s)
	}
	return list, nil
}

func readDrains() ([]plan.Drain, error) {
	text, err := os.ReadFile(plan.DrainsPath)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read drained slots: %w", err)
	}
	return plan.ParseDrains(text)
}

func (m *Machine) policy(k int) (plan.JobPolicy, error) {
	for _, p := range m.Policies {
		if p.Slot == k {
			return p, nil
		}
	}
	return plan.JobPolicy{}, fmt.Errorf("there is no slot %d", k)
}

// Canary runs the runner's evaluation of a small submission in a container of the slot,
// with its GPU and limits, and without network. It uses the strict profile, which
// evaluations ask for, and if that fails the slot's profile.
func (m *Machine) Canary(ctx context.Context, slot Slot, imageID string) (Canary, error) {
	p, err := m.policy(slot.Index)
	if err != nil {
		return Canary{Slot: slot.Name}, err
	}
	strict, err := m.evaluate(ctx, p, imageID, config.ProfileStrict)
	if err != nil || strict.Passed || p.Profile == config.ProfileStrict {
		return strict, err
	}
	c, err := m.evaluate(ctx, p, imageID, p.Profile)
	if c.Passed {
		c.NotStrict = strict.Reason
	}
	return c, err
}

func (m *Machine) evaluate(ctx context.Context, p plan.JobPolicy, imageID, profile string) (Canary, error) {
	c := Canary{Slot: p.Name, Profile: profile, Time: time.Now().UTC()}
	if err := m.tidy(ctx, p); err != nil {
		return c, err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), tidyTime)
		defer cancel()
		_ = m.tidy(clean, p) // the next run looks again
		m.running(p.Slot, "")
	}()
	root, err := os.OpenRoot(p.WorkRoot)
	if err != nil {
		return c, fmt.Errorf("make a checkout: %w", err)
	}
	defer func() { _ = root.Close() }()
	// The image may run as any user, which writes its result there.
	if err := errors.Join(root.Mkdir(canaryName, 0o700), root.Chmod(canaryName, 0o777)); err != nil {
		return c, fmt.Errorf("make a checkout: %w", err)
	}
	end, err := m.run(ctx, p, imageID, profile)
	if err != nil {
		return c, err
	}
	c.Seconds = time.Since(c.Time).Round(time.Millisecond).Seconds()
	// The container could have put anything there.
	doc, err := result.ReadFile(root, canaryName+"/"+result.File)
	c.Uploadable = err == nil && len(doc) > 0 && readable(root, p.User)
	if c, err = judge(c, end, doc); c.Passed && !c.Uploadable {
		c.Passed, c.Reason = false, "it leaves a result.json that the agent cannot read and upload"
	}
	return c, err
}

// Smoke returns the payload, as JSON, of an evaluation that passes in any image that can
// evaluate submissions.
func Smoke() ([]byte, error) {
	doc, err := json.Marshal(map[string]any{
		"lang": "py", "mode": "test", "main": "smoke.py",
		"sources":      map[string]string{"smoke.py": smoke, "submission.py": submission},
		"tests":        []map[string]int{{"size": 64}},
		"benchmarks":   []map[string]int{},
		"test_timeout": int(canaryTime.Seconds()) / 2,
	})
	if err != nil {
		return nil, fmt.Errorf("write canary payload: %w", err)
	}
	return doc, nil
}

// run runs the container to its end.
func (m *Machine) run(ctx context.Context, p plan.JobPolicy, imageID, profile string) (docker.Ended, error) {
	doc, err := Smoke()
	if err != nil {
		return docker.Ended{}, err
	}
	guarded, err := docker.New(p.Socket)
	if err != nil {
		return docker.Ended{}, err
	}
	defer func() { _ = guarded.Close() }()
	id, err := guarded.Create(ctx, docker.Run{
		Name: canaryName, Image: imageID, Network: "none",
		Entrypoint: []string{plan.ContainerBinary}, Cmd: []string{"runner", "--workdir", "/work"},
		Env: append(payload.Environ(payload.Encode(doc)), "KBNODE_PROFILE="+profile), Binds: []string{p.WorkRoot + "/" + canaryName + ":/work"},
	})
	if err != nil {
		return docker.Ended{}, err
	}
	m.running(p.Slot, "docker-"+id+".scope")
	if err := guarded.Start(ctx, id); err != nil {
		return docker.Ended{}, gone(err)
	}
	end, err := guarded.Wait(ctx, id)
	return end, gone(err)
}

// gone adds ErrKilled to the error of a container that was removed, as the start of a job
// does.
func gone(err error) error {
	if errors.Is(err, docker.ErrNotFound) {
		return fmt.Errorf("%w: %w", ErrKilled, err)
	}
	return err
}

func (m *Machine) running(slot int, scope string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.own == nil {
		m.own = map[int]string{}
	}
	m.own[slot] = scope
}

func (m *Machine) canaryOf(slot int) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.own[slot]
}

// readable reports whether the agent can upload the result: until a job ends, its files
// belong to the user of the container.
func readable(root *os.Root, agentUser string) bool {
	info, err := root.Lstat(canaryName + "/" + result.File)
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || info.Mode().Perm()&0o004 != 0 {
		return ok
	}
	u, err := user.Lookup(agentUser)
	return err == nil && u.Uid == strconv.FormatUint(uint64(st.Uid), 10) && info.Mode().Perm()&0o400 != 0
}

// judge judges what a canary's container did and left.
func judge(c Canary, end docker.Ended, doc []byte) (Canary, error) {
	r, err := result.Read(doc)
	if err != nil {
		switch {
		case end.OOMKilled:
			c.Reason = "it ran out of the slot's memory"
		case end.ExitCode == 137:
			return c, ErrKilled
		default:
			c.Reason = fmt.Sprintf("it left no result and exited with %d: %s", end.ExitCode, lastLine(string(bytes.TrimSpace(end.Stderr))))
		}
		c.Reason = text.Line(c.Reason, maxReason)
		return c, nil
	}
	if r.System != nil {
		c.GPU, c.Torch = text.Line(r.System.GPU, maxReason), text.Line(r.System.Torch, maxReason)
	}
	var run *result.Run
	if ev := r.Runs.Get("test"); ev != nil {
		run = ev.Run
	}
	switch {
	case !r.Success:
		c.Reason = cmp.Or(r.Error, "the runner reports neither success nor an error")
	case run == nil:
		c.Reason = "nothing was run"
	case run.Passed && end.ExitCode == 0:
		c.Passed = true
	default:
		c.Reason = cmp.Or(run.Result.Get("test.0.error"), lastLine(strings.TrimSpace(run.Stderr)), fmt.Sprintf("the submission exited with %d", run.ExitCode))
	}
	c.Reason = text.Line(c.Reason, maxReason)
	return c, nil
}

func lastLine(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }

// Tidy removes what interrupted canaries left in slots without a job. In the others, the
// start of the job has removed it.
func (m *Machine) Tidy(ctx context.Context) error {
	slots, err := m.Slots(ctx)
	if err != nil {
		return err
	}
	for i, s := range slots {
		if strings.HasPrefix(s.Job, "job ") {
			continue
		}
		if err := m.tidy(ctx, m.Policies[i]); err != nil {
			return err
		}
	}
	return nil
}

func (m *Machine) tidy(ctx context.Context, p plan.JobPolicy) error {
	name := "kbnode-" + p.Name + "-" + canaryName
	traces, err := m.Engine.Traces(ctx, name)
	for _, t := range traces {
		if t.Kind == "container" && t.Name == name {
			err = errors.Join(err, m.Engine.Erase(ctx, t))
		}
	}
	root, openErr := os.OpenRoot(p.WorkRoot)
	if errors.Is(openErr, fs.ErrNotExist) {
		return err
	}
	if openErr == nil {
		openErr = errors.Join(disk.RemoveTree(root, canaryName), root.Close())
	}
	if err = errors.Join(err, openErr); err != nil {
		return fmt.Errorf("tidy slot %s: %w", p.Name, err)
	}
	return nil
}
