package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	// bodyDeadline is how long a client has to send the body of a request.
	bodyDeadline = 30 * time.Second
	// answerDeadline is how long a client has to read the end of an answer.
	answerDeadline = 30 * time.Second
)

// refusal is an error with a status and a sentence that the client gets.
type refusal struct {
	status   int
	sentence string
}

func (r refusal) Error() string { return r.sentence }

// forbid returns a refusal by policy, with status 403.
func forbid(format string, args ...any) error {
	return refusal{http.StatusForbidden, "kbnode: " + fmt.Sprintf(format, args...)}
}

// form is the pattern that a string must match.
type form func() *regexp.Regexp

func lazily(expr string) form { return lazy.Regexp(expr) }

// MatchString reports whether s has the form.
func (f form) MatchString(s string) bool { return f().MatchString(s) }

// countForm is a number of bytes, or nothing.
var countForm = lazily(`^[0-9]{0,18}$`)

// call is a request.
type call struct {
	w     http.ResponseWriter
	r     *http.Request
	query url.Values
}

// serve answers a request.
func (g *guard) serve(w http.ResponseWriter, r *http.Request) {
	err := g.dispatch(&call{w, r, r.URL.Query()})
	if err == nil {
		return
	}
	no, ok := errors.AsType[refusal](err)
	if !ok {
		no = refusal{http.StatusBadGateway, "kbnode: " + err.Error()}
	}
	g.log.Info("request refused", "method", r.Method, "path", text.Line(r.URL.Path, 200), "status", no.status, "err", no.sentence)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(no.status)
	// The client reads the sentence or is gone.
	_ = json.NewEncoder(w).Encode(map[string]string{"message": no.sentence})
}

func (g *guard) dispatch(c *call) error {
	if c.r.Method == http.MethodPost {
		switch c.r.URL.Path {
		case slot.RunPath:
			return g.run(c)
		case slot.CancelPath:
			return g.cancelRun(c)
		case slot.ReadyPath:
			return g.agentReady(c)
		case slot.RegisteredPath:
			return g.agentRegistered(c)
		}
	}
	if c.r.Method == http.MethodGet && c.r.URL.Path == slot.CheckPath {
		err := g.ready(c.r.Context())
		if err == nil {
			c.w.WriteHeader(http.StatusNoContent)
		}
		return err
	}
	return refusal{http.StatusNotFound, "kbnode: the slot's service does not know " + text.Line(c.r.Method+" "+c.r.URL.Path, 200)}
}

// count returns a parameter that counts bytes.
func (c *call) count(name string) (int64, error) {
	value := c.query.Get(name)
	if !countForm.MatchString(value) {
		return 0, refusal{http.StatusBadRequest, "kbnode: " + name + " is not a number of bytes"}
	}
	n, _ := strconv.ParseInt("0"+value, 10, 64)
	return n, nil
}

// hangUp closes what was read to its end or is given up, so that an error no longer matters.
func hangUp(c io.Closer) { _ = c.Close() }

// checkPolicy returns what a policy lacks. Zero would mean "no limit" to the engine.
func checkPolicy(p plan.JobPolicy) error {
	var errs []error
	lack := func(missing bool, what string) {
		if missing {
			errs = append(errs, fmt.Errorf("the policy of slot %s has no %s", p.Name, what))
		}
	}
	lack(p.Name == "", "name")
	lack(p.User == "", "user")
	lack(!strings.HasSuffix(p.Slice, ".slice") || strings.Contains(p.Slice, "/"), "slice")
	lack(p.CPUs == "", "cpus")
	lack(p.MemoryNodes == "", "memory_nodes")
	lack(p.MemoryBytes <= slot.PageSlack, "memory_bytes")
	lack(p.PidsLimit <= 0, "pids_limit")
	lack(p.ShmBytes <= 0, "shm_bytes")
	lack(!filepath.IsAbs(p.WorkRoot) || filepath.Clean(p.WorkRoot) == "/", "work_root")
	lack(!filepath.IsAbs(p.DockerSocket), "docker_socket")
	lack(!filepath.IsAbs(p.Socket), "socket")
	return errors.Join(errs...)
}
