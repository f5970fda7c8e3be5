// Package bootstrap is what a slot's agent starts for a job, in place of its own bootstrap. It
// reads the job as data, has a process of root run it in a container, writes the log, uploads
// artifacts, and ends as Buildkite expects. It starts no program of the job's.
package bootstrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// ExitNode is the exit status where the node is at fault. Pipelines retry it once.
const ExitNode = 255

// uploadTime bounds an upload.
const uploadTime = 30 * time.Minute

// maxIgnored bounds, in bytes, how many names of ignored variables the log has.
const maxIgnored = 2000

// Config configures a run.
type Config struct {
	Input    job.Input
	InputErr error  // why Input is not all of it; nil if it is
	Socket   string // where the slot's jobs are run
	Slot     string // its name, for the log
	Log      io.Writer
	Agent    string // path of buildkite-agent
	// Canceled is closed if a signal came before Run listens for signals; nil if none can have.
	Canceled <-chan struct{}

	Hooks    string // directory with hooks of the node's operator; "" for none
	SlotVars string // file of the slot's variables, as NAME=value
	Home     string // for hooks

	hookOwner int           // user ID; root unless a test is not
	hookLimit time.Duration // 0 means hookTime
}

// Run runs the job that the agent has, writes its log, and uploads its artifacts. It returns the
// exit status for the agent, and the signal by which this process must end instead if the job was
// canceled.
func Run(ctx context.Context, c Config) (status int, by os.Signal) {
	// A log over its limit closes the pipe: the job goes on.
	signal.Ignore(syscall.SIGPIPE)
	canceled, stop := c.untilCanceled(ctx)
	defer stop()
	status = c.run(ctx, canceled)
	if e := cancellation(canceled); e != nil {
		by = e.by
	}
	return status, by
}

func (c Config) run(ctx, canceled context.Context) (status int) {
	// A refusal may quote a secret, too.
	log := NewRedactor(c.Log, secrets(c.Input.Env, strings.Split(c.Input.Env["BUILDKITE_REDACTED_VARS"], ",")))
	c.Log = log
	defer log.Close()
	const ignored = "BUILDKITE_IGNORED_ENV" // the agent's, unless it ignored none
	if names := c.Input.Env[ignored]; names != "" && !slices.Contains(c.Input.Sent, job.Var{Name: ignored, Value: names}) {
		c.say("kbnode: Buildkite's agent ignored " + text.Line(names, maxIgnored) + ", which no build may set")
	}
	spec, err := (*job.Spec)(nil), c.InputErr
	if err == nil {
		spec, err = job.Read(c.Input)
	}
	if err != nil {
		why, status := []string{err.Error()}, ExitNode
		if refused, ok := errors.AsType[*job.Refusal](err); ok {
			why, status = refused.Lines(), job.ExitRefused
		}
		c.say(append([]string{"+++ kbnode does not run this step"}, why...)...)
		c.worked(ctx)
		return status
	}
	c.say("~~~ kbnode prepares a container on " + c.Slot)
	defer c.preExit(canceled)
	if err := c.environment(canceled, spec, log); err != nil {
		c.say("^^^ +++", "kbnode: "+err.Error())
		c.worked(ctx)
		return ExitNode
	}
	o, err := c.follow(ctx, canceled, spec)
	if err != nil {
		c.say("^^^ +++", "kbnode: "+err.Error())
		return ExitNode
	}
	switch {
	case o.Refused != "":
		c.say("^^^ +++", "kbnode does not run this step: "+o.Refused)
		return job.ExitRefused
	case o.NodeFault != "":
		c.say("^^^ +++", "kbnode: "+o.NodeFault)
		status = ExitNode
	default:
		status = exitStatus(o.ExitCode)
	}
	if o.OutOfMemory {
		c.say("kbnode: the job used more memory than its slot has, so the kernel ended it")
	}
	if o.Reason != "" {
		c.say("kbnode: " + o.Reason)
	}
	if err := c.upload(canceled, spec, o); err != nil {
		c.say("^^^ +++", "kbnode: "+err.Error())
		if _, ok := errors.AsType[*job.Refusal](err); ok {
			status = job.ExitRefused
		}
		if end, ok := errors.AsType[*exec.ExitError](err); ok && spec.Kind == job.KindUpload {
			status = exitStatus(end.ExitCode()) // as without kbnode: Buildkite may refuse the pipeline
		}
		if status == 0 {
			status = ExitNode
		}
	}
	return status
}

// worked tells the slot that its agent had a job, of which no request says so.
func (c Config) worked(ctx context.Context) {
	if err := Report(ctx, c.Socket, slot.WorkedName); err != nil {
		c.say("kbnode: " + err.Error()) // the next agent may wait a little, as after one that failed
	}
}

// exitStatus is the status of the command, but never 125: newer agents take it for a process that
// could not start.
func exitStatus(code int) int {
	switch {
	case code == 125:
		return 1
	case code < 0 || code > 255: // no process ends like this
		return ExitNode
	}
	return code
}

// follow has the slot run the job and writes what it says, until it has ended.
func (c Config) follow(ctx, canceled context.Context, spec *job.Spec) (slot.Outcome, error) {
	begin := sync.OnceFunc(func() { c.say("+++ " + title(spec)) })
	o, err := runSpec(ctx, canceled, c.Socket, slotAway, spec, func(kind slot.FrameKind, data []byte) {
		if kind == slot.FrameNote {
			c.say("kbnode " + string(data))
			return
		}
		begin()
		_, _ = c.Log.Write(data)
	})
	if err == nil && o.Refused == "" && o.NodeFault == "" && !o.Canceled && spec.Kind != job.KindUpload {
		begin() // it ran without a word
	}
	return o, err
}

// title is a line that says what runs.
func title(spec *job.Spec) string {
	line, _, more := strings.Cut(strings.TrimSpace(strings.Join(spec.Command[max(0, len(spec.Command)-1):], "")), "\n")
	if len(line) > 100 || more {
		line = strings.ToValidUTF8(line[:min(len(line), 100)], "") + " …"
	}
	if line == "" {
		line = "the image's command"
	}
	return line
}

// say writes lines of kbnode's own. A job may end within a line, where Buildkite would see no group.
func (c Config) say(lines ...string) {
	text := strings.Join(lines, "\n") + "\n"
	if log, ok := c.Log.(*Redactor); ok && log.inLine() {
		text = "\n" + text
	}
	_, _ = io.WriteString(c.Log, text)
}

// secrets returns the values of the variables that the patterns hide.
func secrets(env map[string]string, patterns []string) (values []string) {
	for name, value := range env {
		if job.Hides(patterns, name) {
			values = append(values, value)
		}
	}
	return values
}

// upload uploads what the job left: its artifacts, or the pipeline that it is about.
func (c Config) upload(canceled context.Context, spec *job.Spec, o slot.Outcome) error {
	if o.Lost != "" {
		return errors.New(o.Lost)
	}
	if o.Files == "" {
		return nil
	}
	ctx, stop := c.withinPatience(canceled, uploadTime)
	defer stop()
	if spec.Kind == job.KindUpload {
		text, err := limit.ReadFile(filepath.Join(o.Files, o.Pipeline), job.MaxPipeline)
		if err != nil {
			return err
		}
		vars := slices.Clone(c.Input.Sent)
		if c.SlotVars != "" { // as in a container, they win over the build's
			own, err := c.slotVars()
			if err != nil {
				return err
			}
			for name, value := range own {
				vars = append(vars, job.Var{Name: name, Value: value})
			}
		}
		filled, err := job.FillPipeline(string(text), vars)
		if err != nil {
			return err
		}
		if err := c.agent(ctx, o.Files, bytes.NewReader(filled), "pipeline", "upload", "--no-interpolation"); err != nil {
			return fmt.Errorf("upload pipeline: %w", err)
		}
		return nil
	}
	c.say("~~~ Uploading artifacts")
	if err := c.agent(ctx, o.Files, nil, "artifact", "upload", strings.Join(spec.Artifacts, ";")); err != nil {
		return fmt.Errorf("upload artifacts: %w", err)
	}
	return nil
}

var errGone = errors.New("the slot does not answer; see kbnode status on the node")
