package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// ExitNode is the exit status where the node is at fault. Pipelines retry it once.
const ExitNode = 255

const (
	// uploadTime bounds an upload, and canceledUploadTime one of a canceled job, whose agent does not
	// wait much longer.
	uploadTime         = 30 * time.Minute
	canceledUploadTime = 20 * time.Second
)

// Config configures a run.
type Config struct {
	Input  job.Input
	Socket string // of the slot's service
	Slot   string // its name, for the log
	Log    io.Writer
	Agent  string // path of buildkite-agent
	// Canceled is closed if a signal came before Run listens for signals; nil if none can have.
	Canceled <-chan struct{}
}

// Run runs the job that the agent has, writes its log, and uploads its artifacts. It returns the
// exit status for the agent, and the signal by which this process must end instead if the job was
// canceled.
func Run(ctx context.Context, c Config) (status int, by os.Signal) {
	// A log over its limit closes the pipe: the job goes on.
	signal.Ignore(syscall.SIGPIPE)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	defer signal.Stop(signals)
	go func() {
		select {
		case <-c.Canceled:
			signals <- syscall.SIGTERM
		case <-ctx.Done():
		}
	}()

	// A refusal may quote a secret, too.
	log := NewRedactor(c.Log, secrets(c.Input.Env, strings.Split(c.Input.Env["BUILDKITE_REDACTED_VARS"], ",")))
	c.Log = log
	defer func() { _ = log.Close() }() // its reader may be gone
	spec, err := job.Read(c.Input)
	if err != nil {
		c.say("+++ kbnode does not run this step", err.Error())
		return job.ExitRefused, nil
	}
	c.say("~~~ kbnode prepares a container on " + c.Slot)
	o, by, err := c.follow(ctx, spec, signals)
	if err != nil {
		c.say("^^^ +++", "kbnode: "+err.Error())
		return ExitNode, by
	}
	switch {
	case o.Refused != "":
		c.say("^^^ +++", "kbnode does not run this step: "+o.Refused)
		return job.ExitRefused, by
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
	if err := c.uploadUntil(ctx, spec, o, signals, &by); err != nil {
		c.say("^^^ +++", "kbnode: "+err.Error())
		if status == 0 {
			status = ExitNode
		}
	}
	return status, by
}

// exitStatus is the status of the command, but never 125: newer agents take it for a process that
// could not start.
func exitStatus(code int) int {
	if code == 125 {
		return 1
	}
	return code
}

// follow has the slot's service run the job and writes what it says, until it has ended.
func (c Config) follow(ctx context.Context, spec *job.Spec, signals <-chan os.Signal) (o slot.Outcome, by os.Signal, err error) {
	service, err := newClient(c.Socket, spec)
	if err != nil {
		return o, nil, err
	}
	type end struct {
		o   slot.Outcome
		err error
	}
	ended := make(chan end, 1)
	canceling, done := context.WithCancel(ctx)
	defer done()
	running := false
	go func() {
		o, err := service.run(ctx, func(kind slot.FrameKind, data []byte) {
			if kind == slot.FrameNote {
				c.say("kbnode " + string(data))
				return
			}
			if !running {
				running = true
				c.say("+++ " + title(spec))
			}
			_, _ = c.Log.Write(data) // its reader may be gone
		})
		ended <- end{o, err}
	}()
	for {
		select {
		case e := <-ended:
			return e.o, by, e.err
		case s := <-signals:
			if by == nil {
				by = s
			}
			go service.cancel(canceling, spec.JobID)
		}
	}
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

// say writes lines of kbnode's own.
func (c Config) say(lines ...string) {
	_, _ = io.WriteString(c.Log, strings.Join(lines, "\n")+"\n") // its reader may be gone
}

// secrets returns the values of the variables whose names match one of the patterns.
func secrets(env map[string]string, patterns []string) (values []string) {
	for name, value := range env {
		if slices.ContainsFunc(patterns, func(p string) bool { ok, err := path.Match(strings.TrimSpace(p), name); return ok && err == nil }) {
			values = append(values, value)
		}
	}
	return values
}

// uploadUntil uploads what the job left, and does not take long if the job is canceled meanwhile.
func (c Config) uploadUntil(ctx context.Context, spec *job.Spec, o slot.Outcome, signals <-chan os.Signal, by *os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	uploaded := make(chan error, 1)
	go func() { uploaded <- c.upload(ctx, spec, o) }()
	for {
		select {
		case err := <-uploaded:
			return err
		case s := <-signals:
			if *by == nil {
				*by = s
			}
			time.AfterFunc(canceledUploadTime, cancel)
		}
	}
}

// upload uploads what the job left: its artifacts, or the pipeline that it is about.
func (c Config) upload(ctx context.Context, spec *job.Spec, o slot.Outcome) error {
	if o.Files == "" {
		return nil
	}
	if spec.Kind == job.KindUpload {
		if err := c.agent(ctx, o.Files, uploadTime, sentEnv(c.Input), "pipeline", "upload", filepath.Join(o.Files, o.Pipeline)); err != nil {
			return fmt.Errorf("upload pipeline: %w", err)
		}
		return nil
	}
	limit := uploadTime
	if o.Canceled {
		limit = canceledUploadTime
	}
	c.say("~~~ Uploading artifacts")
	if err := c.agent(ctx, o.Files, limit, nil, "artifact", "upload", strings.Join(spec.Artifacts, ";")); err != nil {
		return fmt.Errorf("upload artifacts: %w", err)
	}
	return nil
}

// End ends this process as the agent expects of a job that was canceled.
func End(by os.Signal) {
	s, ok := by.(syscall.Signal)
	if !ok {
		return
	}
	signal.Reset(by)
	_ = syscall.Kill(os.Getpid(), s) // otherwise the exit status says it
	time.Sleep(time.Second)
}

var errGone = errors.New("the slot's service does not answer; see kbnode status on the node")
