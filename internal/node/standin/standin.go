// Package standin registers an agent with Buildkite for each slot that takes no jobs. It takes none either, but its state and
// the note of its pause say why, so that operators learn it from Buildkite, without a login on the node.
package standin

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// maxNote bounds a reason in characters, so that Buildkite refuses none.
	maxNote = 400
	// retryTime is the pause after a failure, and retryMost the longest one.
	retryTime, retryMost = 15 * time.Second, 10 * time.Minute
	// settleTime is how long a slot must be out of service: agents that start and end again and again are none of them.
	settleTime = 30 * time.Second
)

// Service is what the slots' agents connect to.
type Service struct {
	Endpoint     string // such as https://agent.buildkite.com/v3
	AgentVersion string
}

// Absence is a slot that takes no jobs.
type Absence struct {
	Agent  string   // name of the slot's agent in Buildkite
	Tags   []string // of the slot's agent
	State  string   // drained, parked or failed
	Reason string
	Since  time.Time // since when it is drained; zero if that is not known
}

func (a Absence) tags() []string {
	tags := append(slices.Clone(a.Tags), plan.OutTag+"="+a.State)
	if !a.Since.IsZero() {
		tags = append(tags, plan.OutSinceTag+"="+a.Since.UTC().Format(time.RFC3339))
	}
	return tags
}

// same reports whether one agent can stand in for both: all but its note is fixed when it registers.
func (a Absence) same(b Absence) bool {
	return a.Agent == b.Agent && a.State == b.State && a.Since.Equal(b.Since) && slices.Equal(a.Tags, b.Tags)
}

// Options are what stand-ins need.
type Options struct {
	Network http.RoundTripper // nil is http.DefaultTransport
	Token   func() (string, error)
	Log     *slog.Logger
}

// Keeper keeps a stand-in for each absent slot. No slot waits for another, and nothing waits for them.
type Keeper struct {
	Options
	wait    sync.WaitGroup
	mu      sync.Mutex
	standIn map[string]*standIn // by the agent's name
}

type standIn struct {
	Absence
	service Service
	stop    context.CancelFunc
}

// New returns a Keeper. The caller closes it.
func New(o Options) *Keeper {
	if o.Network == nil {
		o.Network = http.DefaultTransport
	}
	return &Keeper{Options: o, standIn: map[string]*standIn{}}
}

// Update says which slots are absent now, and where their agents connect to. It does not wait for Buildkite.
func (k *Keeper) Update(service Service, absent []Absence) {
	k.mu.Lock()
	defer k.mu.Unlock()
	absent = slices.Clone(absent)
	for i, a := range absent { // a slot that has not served since is drained since then, whichever of its drains has ended
		if s := k.standIn[a.Agent]; s != nil && s.State == a.State && !s.Since.IsZero() && s.Since.Before(a.Since) {
			absent[i].Since = s.Since
		}
	}
	for name, s := range k.standIn {
		i := slices.IndexFunc(absent, s.same)
		if i < 0 || s.service != service {
			s.stop()
			delete(k.standIn, name)
		} else {
			s.Reason = absent[i].Reason
		}
	}
	for _, a := range absent {
		if k.standIn[a.Agent] != nil {
			continue
		}
		ctx, stop := context.WithCancel(context.Background())
		s := &standIn{Absence: a, service: service, stop: stop}
		k.standIn[a.Agent] = s
		k.wait.Go(func() { k.keep(ctx, s) })
	}
}

// Close ends all stand-ins, and waits until Buildkite knows, for some seconds at most.
func (k *Keeper) Close() {
	k.Update(Service{}, nil)
	k.wait.Wait()
}

func (k *Keeper) reason(s *standIn) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return text.Line(s.Reason, maxNote)
}

// keep keeps one stand-in until ctx ends.
func (k *Keeper) keep(ctx context.Context, s *standIn) {
	if limit.Sleep(ctx, settleTime) != nil {
		return
	}
	said := ""
	failed := func(err error) {
		call, _, _ := strings.Cut(err.Error(), ":") // what follows may differ each time, such as a port
		if ctx.Err() == nil && call != said {
			said = call
			k.Log.Warn("reason not shown in Buildkite", "agent", s.Agent, "err", err)
		}
	}
	for pause := retryTime; ; pause = min(2*pause, retryMost) {
		began := time.Now()
		if err := k.stand(ctx, s, failed); err != nil {
			failed(err)
		}
		if time.Since(began) > retryMost {
			pause = retryTime
		}
		if limit.Sleep(ctx, pause) != nil {
			return
		}
	}
}

func (k *Keeper) stand(ctx context.Context, s *standIn, failed func(error)) error {
	token, err := k.Token()
	if err != nil {
		return err
	}
	host, _ := os.Hostname() // Buildkite takes none for empty
	k.mu.Lock()
	absence := s.Absence // Update changes its reason
	k.mu.Unlock()
	session, err := register(ctx, k.Network, s.service, token, host, absence)
	if err != nil {
		return err
	}
	return session.hold(ctx, func() string { return k.reason(s) }, failed)
}
