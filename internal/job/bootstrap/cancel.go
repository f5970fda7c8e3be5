package bootstrap

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"
)

const (
	// defaultPatience is how long an agent that does not say it waits for a canceled job, and
	// maxPatience the most that it can say.
	defaultPatience = 10 * time.Second
	maxPatience     = time.Hour
	// endTime is the part of the agent's patience that is left for this process to end.
	endTime = 3 * time.Second
)

// canceledError is the signal that canceled a job, as the cause of a context.
type canceledError struct {
	by os.Signal
	at time.Time
}

func (*canceledError) Error() string { return "the job was canceled" }

// untilCanceled returns a context that ends with the first signal that cancels the job.
func (c Config) untilCanceled(ctx context.Context) (canceled context.Context, stop func()) {
	canceled, cancel := context.WithCancelCause(ctx)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT)
	go func() {
		select {
		case s := <-signals:
			cancel(&canceledError{s, time.Now()})
		case <-c.Canceled:
			cancel(&canceledError{syscall.SIGTERM, time.Now()})
		case <-canceled.Done():
		}
	}()
	return canceled, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// cancellation returns what canceled the job, or nil.
func cancellation(canceled context.Context) *canceledError {
	by, _ := errors.AsType[*canceledError](context.Cause(canceled))
	return by
}

// withinPatience returns a context for work besides the job's command. A cancellation does not end it
// at once, but before the agent loses patience and kills this process.
func (c Config) withinPatience(canceled context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(canceled), limit)
	stop := context.AfterFunc(canceled, func() {
		if by := cancellation(canceled); by != nil {
			time.AfterFunc(time.Until(by.at.Add(patience(c.Input.Env)-endTime)), cancel)
		}
	})
	return ctx, func() { stop(); cancel() }
}

// patience is how long the agent waits for a job that it has canceled. Agents of major version 3 say
// it in the first variable, those of version 4 in the second. A build can set the one that its agent
// does not, so the shorter time counts.
func patience(env map[string]string) time.Duration {
	least := maxPatience
	for _, name := range []string{"BUILDKITE_SIGNAL_GRACE_PERIOD_SECONDS", "BUILDKITE_CANCEL_SIGNAL_TIMEOUT"} {
		text := env[name]
		d, err := time.ParseDuration(text)
		if n, err2 := strconv.Atoi(text); err2 == nil && n < int(maxPatience/time.Second) {
			d, err = time.Duration(n)*time.Second, nil
		}
		if err == nil && d > 0 {
			least = min(least, d)
		}
	}
	if least == maxPatience {
		return defaultPatience
	}
	return least
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
