package image

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

//go:embed smoke.py
var smoke string

const submission = `def custom_kernel(data):
    return [2 * n for n in data]
`

const (
	maxOutput = 4 << 10 // bytes of a canary's output that are kept
	maxReason = 300     // bytes
	smokeSize = 64      // edge of the matrices that a canary multiplies
)

// ErrNoNode means that there are no slots.
var ErrNoNode = errors.New("this machine is not set up as a node; type sudo kbnode install, or kbnode queue --node NAME to see another machine")

// Machine is the node that kbnode runs on.
type Machine struct {
	Policies []plan.JobPolicy // of its slots

	limit time.Duration // of one run of a canary; 0 means canaryTime
}

// OpenMachine reads this machine's slots from the policies of their services.
func OpenMachine() (*Machine, error) {
	policies, err := slot.ReadPolicies("/")
	if err != nil {
		return nil, err
	}
	return &Machine{Policies: policies}, nil
}

// Slots returns the state of all slots of the machine. One whose processes cannot be read counts as busy.
func (m *Machine) Slots(context.Context) ([]Slot, error) { return m.slots(onHost) }

func (m *Machine) slots(h *reconcile.Host) ([]Slot, error) {
	drains, err := h.ReadDrains()
	if err != nil {
		return nil, err
	}
	var list []Slot
	for _, p := range m.Policies {
		s := Slot{Index: p.Slot, Name: p.Name, policy: p}
		slice := "/" + plan.ParentSlice + "/" + p.Slice
		now, _ := h.ObserveSlot(slot.State{
			Index: p.Slot, Name: p.Name, Agent: slot.Unit{Cgroup: slice + "/" + plan.AgentUnit(p.Slot)}, Slice: slot.Slice{Cgroup: slice},
		})
		switch {
		case now.Job != nil:
			s.Job = "job " + now.Job.ID
		case len(now.Containers) > 0:
			s.Job = "container " + now.Containers[0]
		}
		for _, d := range drains {
			switch {
			case d.Slot != p.Slot || d.By == plan.ByOperator: // which may be used; canaries may be the reason
			case d.By == health.CheckProof:
				s.Owes = d.String()
			default:
				s.Away = cmp.Or(s.Away, d.String())
			}
		}
		if s.Away == "" && len(now.Parked) > 0 {
			s.Away = "it is parked: " + now.Parked[0].Reason
		} else if _, err := os.Stat(p.Socket); s.Away == "" && err != nil {
			s.Away = p.Socket + " is missing; systemctl status " + plan.JobSocket(p.Slot) + " says why"
		}
		list = append(list, s)
	}
	return list, nil
}

// Canary has the slot run the runner's evaluation of a small submission as a job, without network.
// It uses the strict profile, which evaluations ask for, and if that fails the slot's profile. The
// error is errJob if a job of the agent's goes first.
func (m *Machine) Canary(ctx context.Context, slot Slot, imageID string) (Canary, error) {
	doc, err := payloadOf(map[string]int{"size": smokeSize, "visible": visibleGPUs(slot.policy)})
	if err != nil {
		return Canary{}, err
	}
	return m.inProfiles(ctx, slot.policy, imageID, doc)
}

// inProfiles evaluates a payload in the strict profile, and if that fails in the slot's. A wrong result has no second try, or a
// GPU that errs now and then would have one.
func (m *Machine) inProfiles(ctx context.Context, p plan.JobPolicy, imageID string, doc []byte) (Canary, error) {
	strict, err := m.evaluate(ctx, p, imageID, config.ProfileStrict, doc)
	if err != nil || strict.Passed || strict.Wrong || p.Profile == config.ProfileStrict {
		return strict, err
	}
	c, err := m.evaluate(ctx, p, imageID, p.Profile, doc)
	if c.Passed {
		c.NotStrict = strict.Reason
	}
	return c, err
}

// canaryTime bounds a canary's run in one profile, with all that starts and ends it: the first import of a
// large library takes a minute from a slow disk.
const canaryTime = 10 * time.Minute

// evaluate has a limit of its own in each profile: the evaluation must reach its test_timeout in both, so that an image
// that hangs fails and the slot is not at fault. Hooks take none of it: an epilog that is due, and those of the canary.
func (m *Machine) evaluate(ctx context.Context, p plan.JobPolicy, imageID, profile string, doc []byte) (Canary, error) {
	ctx, cancel := context.WithTimeout(ctx, cmp.Or(m.limit, canaryTime)+3*p.HookLimit())
	defer cancel()
	c := Canary{Slot: p.Name, Profile: profile, Time: time.Now().UTC()}
	end, output, err := run(ctx, p, imageID, profile, doc)
	if err != nil {
		return c, err
	}
	c.Seconds = time.Since(c.Time).Round(time.Millisecond).Seconds()
	var left []byte
	if end.Files != "" {
		root, err := os.OpenRoot(end.Files)
		if err != nil { // the next job has cleared it away
			return c, fmt.Errorf("%w: %w", ErrKilled, err)
		}
		left, _ = result.ReadFile(root, result.File)
		_ = root.Close()
	}
	c.Uploadable = len(left) > 0
	return judge(c, end, output, left)
}

// Smoke returns the payload, as JSON, of an evaluation that passes in any image that can
// evaluate submissions. It is a canary of any slot.
func Smoke() ([]byte, error) { return payloadOf(map[string]int{"size": smokeSize}) }

// payloadOf returns the payload of smoke.py with a test case.
func payloadOf(test map[string]int) ([]byte, error) {
	doc, err := json.Marshal(map[string]any{
		"lang": "py", "mode": "test", "main": "smoke.py",
		"sources":      map[string]string{"smoke.py": smoke, "submission.py": submission},
		"tests":        []map[string]int{test},
		"benchmarks":   []map[string]int{},
		"test_timeout": int(canaryTime.Seconds()) / 2,
	})
	if err != nil {
		return nil, fmt.Errorf("write canary payload: %w", err)
	}
	return doc, nil
}

// run runs the job to its end, and returns the end of what it wrote to its standard error.
func run(ctx context.Context, p plan.JobPolicy, imageID, profile string, doc []byte) (end slot.Outcome, output []byte, err error) {
	entrypoint := plan.ContainerBinary
	spec := &job.Spec{
		Kind: job.KindPlugin, JobID: "canary-" + rand.Text(), Image: imageID, Pull: job.PullMissing,
		Entrypoint: &entrypoint, Command: []string{"runner", "--workdir", "/work"}, Mounts: []job.Mount{{Source: ".", Target: "/work"}},
		Profile: profile, Network: job.NetworkNone, Checkout: job.Checkout{Mode: job.CheckoutNone}, Artifacts: []string{result.File},
	}
	for _, v := range payload.Environ(payload.Encode(doc)) {
		name, value, _ := strings.Cut(v, "=")
		spec.Env = append(spec.Env, job.Var{Name: name, Value: value})
	}
	end, err = bootstrap.RunSpec(ctx, p.Socket, spec, func(kind slot.FrameKind, data []byte) {
		if kind == slot.FrameStderr {
			output = append(output, data...)
			output = output[max(0, len(output)-maxOutput):]
		}
	})
	switch {
	case err != nil:
	case end.Canceled && ctx.Err() != nil:
		err = fmt.Errorf("it was ended: %w", ctx.Err())
	case end.Canceled:
		err = errJob
	case end.Refused+end.NodeFault != "":
		err = errors.New(end.Refused + end.NodeFault)
	}
	return end, output, err
}

// judge judges what a canary's container did, said and left.
func judge(c Canary, end slot.Outcome, output, doc []byte) (Canary, error) {
	r, err := result.Read(doc)
	if err != nil {
		switch {
		case end.OutOfMemory:
			c.Reason = "it ran out of the slot's memory"
		case end.ExitCode == 137:
			return c, ErrKilled
		case end.Lost != "": // not the image's fault, nor the GPU's
			return c, errors.New(text.Line(end.Lost, maxReason))
		default:
			c.Reason = fmt.Sprintf("it left no result and exited with %d: %s", end.ExitCode, cmp.Or(end.Reason, lastLine(string(bytes.TrimSpace(output)))))
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
	case !r.Success && strings.Contains(r.Error, result.Cancelled): // as by a restart of the engine
		return c, ErrKilled
	case !r.Success:
		c.Reason = cmp.Or(r.Error, "the runner reports neither success nor an error")
	case run == nil:
		c.Reason = "nothing was run"
	case run.Passed && end.ExitCode == 0:
		c.Passed, c.Computed = true, text.Line(run.Result.Get("test.0.message"), maxReason)
	default:
		c.Wrong = run.Result.Get("test.0.wrong") != ""
		c.Reason = cmp.Or(run.Result.Get("test.0.error"), lastLine(strings.TrimSpace(run.Stderr)), fmt.Sprintf("the submission exited with %d", run.ExitCode))
	}
	c.Reason = text.Line(c.Reason, maxReason)
	return c, nil
}

func lastLine(text string) string { return text[strings.LastIndexByte(text, '\n')+1:] }
