package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/slot"
	"github.com/gpu-mode/kbnode/internal/text"
)

// minVersion is the oldest minor API version that the guard understands, Docker 20.10. Older
// requests mean something other than what is checked here.
const minVersion = 41

// refusal is an error with a status and a sentence that the client gets in Docker's format.
type refusal struct {
	status   int
	sentence string
}

func (r refusal) Error() string { return r.sentence }

// forbid returns a refusal by policy, with status 403.
func forbid(format string, args ...any) error {
	return refusal{http.StatusForbidden, "kbnode: " + fmt.Sprintf(format, args...)}
}

// call is one request that a route has accepted.
type call struct {
	w       http.ResponseWriter
	r       *http.Request
	version string // "v1.45", or "" if the client named none
	method  string // for the engine
	path    string // for the engine, without the version
	id      string // the full ID of the container, if the path names one
	own     owned
	auth    string     // credentials for the registry
	query   url.Values // only parameters that the route knows, without empty ones
}

// route is one request that a job may send. Requests without a route are refused.
type route struct {
	method string
	path   string // "{id}" is a container of the slot, "{image}" an image's name
	params params // what the query may contain
	handle func(*call) error
}

var (
	flagForm     = lazily(`^(?i:0|1|true|false)$`)
	offForm      = lazily(`^(?i:0|false)$`)
	intForm      = lazily(`^-?[0-9]{1,9}$`)
	intForm64    = lazily(`^[0-9]{1,18}$`)
	jobForm      = lazily(`^[A-Za-z0-9-]{1,64}$`)
	timeForm     = lazily(`^[0-9A-Za-z:.+-]{1,40}$`)
	tailForm     = lazily(`^(all|[0-9]{1,9})$`)
	tagForm      = lazily(`^[A-Za-z0-9_][A-Za-z0-9_.:-]{0,127}$`)
	platformForm = lazily(`^[a-z0-9][a-z0-9/._-]{0,63}$`)
	keysForm     = lazily(`^[A-Za-z0-9@^\[\],_-]{1,64}$`)
	waitForm     = lazily(`^(not-running|next-exit|removed)$`)
	filterForm   = lazily(`^\{.*\}$`)
	versionForm  = lazily(`^v1\.([0-9]{1,2})$`)
)

type params map[string]form

func (g *guard) routes() []route {
	return []route{
		{"POST", strings.TrimPrefix(slot.RunPath, "/"), params{slot.StdoutParam: intForm64, slot.StderrParam: intForm64}, g.run},
		{"POST", strings.TrimPrefix(slot.CancelPath, "/"), params{slot.JobParam: jobForm}, g.cancelRun},

		{"HEAD", "_ping", nil, g.pass},
		{"GET", "_ping", nil, g.pass},
		{"GET", "version", nil, g.pass},
		{"GET", "info", nil, few(g.whole, g.info)},
		{"GET", "networks", params{"filters": filterForm}, networks},

		{"POST", "images/create", params{"fromImage": imageForm, "tag": tagForm, "platform": platformForm}, few(g.pulls, g.pull)},
		{"GET", "images/{image}/json", params{"manifests": flagForm, "platform": filterForm}, few(g.whole, g.show)},

		{"GET", "containers/json", params{"all": flagForm, "limit": intForm, "size": flagForm, "filters": filterForm}, few(g.whole, g.list)},
		{"POST", "containers/create", params{"name": refForm, "platform": platformForm}, few(g.whole, g.frugal(g.create))},
		{"GET", "containers/{id}/json", params{"size": flagForm}, few(g.whole, g.show)},
		{"GET", "containers/{id}/logs", params{"follow": flagForm, "stdout": flagForm, "stderr": flagForm, "timestamps": flagForm,
			"details": flagForm, "since": timeForm, "until": timeForm, "tail": tailForm}, g.pass},
		{"POST", "containers/{id}/attach", params{"logs": flagForm, "stream": flagForm, "stdin": flagForm, "stdout": flagForm,
			"stderr": flagForm, "detachKeys": keysForm}, g.attach},
		{"POST", "containers/{id}/start", params{"detachKeys": keysForm}, few(g.whole, g.frugal(g.start))},
		{"POST", "containers/{id}/wait", params{"condition": waitForm}, g.pass},
		{"POST", "containers/{id}/resize", params{"h": intForm, "w": intForm}, g.pass},
		{"POST", "containers/{id}/kill", params{"signal": signalForm}, g.pass},
		{"POST", "containers/{id}/stop", params{"t": intForm, "signal": signalForm}, g.stop},
		{"DELETE", "containers/{id}", params{"force": flagForm, "v": flagForm, "link": offForm}, g.remove},

		{"POST", strings.TrimPrefix(slot.ReadyPath, "/"), nil, g.agentReady},
		{"POST", strings.TrimPrefix(slot.RegisteredPath, "/"), nil, g.agentRegistered},
	}
}

// serve finds the route of a request and answers it.
func (g *guard) serve(w http.ResponseWriter, r *http.Request) {
	err := g.dispatch(w, r)
	if err == nil {
		return
	}
	var no refusal
	if !errors.As(err, &no) {
		no = refusal{http.StatusBadGateway, "kbnode: " + err.Error()}
	}
	g.log.Info("request refused", "method", r.Method, "path", text.Line(r.URL.Path, 200), "status", no.status, "err", no.sentence)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(no.status)
	if r.Method != http.MethodHead {
		// The client reads the sentence or is gone.
		_ = json.NewEncoder(w).Encode(map[string]string{"message": no.sentence})
	}
}

func (g *guard) dispatch(w http.ResponseWriter, r *http.Request) error {
	c := &call{w: w, r: r, method: r.Method}
	segments := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if m := versionForm().FindStringSubmatch(segments[0]); m != nil {
		if minor, _ := strconv.Atoi(m[1]); minor < minVersion {
			return refusal{http.StatusBadRequest, fmt.Sprintf("kbnode: client version 1.%d is too old; use 1.%d (Docker 20.10) or newer", minor, minVersion)}
		}
		c.version, segments = segments[0], segments[1:]
	}
	for _, rt := range g.table {
		ref, image, ok := match(rt, r.Method, segments)
		if !ok {
			continue
		}
		if image != "" && !imageForm.MatchString(image) {
			return forbid("%.80q is not the name of an image; write one such as %s", image, config.DefaultImage)
		}
		var err error
		if ref != "" {
			if c.id, c.own, err = g.own.resolve(r.Context(), ref); err != nil {
				return err
			}
		}
		c.path = strings.NewReplacer("{id}", c.id, "{image}", image).Replace(rt.path)
		if c.query, err = query(rt, r.URL.RawQuery); err != nil {
			return err
		}
		return rt.handle(c)
	}
	return forbid("%s %s is not available to jobs; use only what pulls images, and runs, lists, attaches to, stops and removes the job's own containers",
		r.Method, text.Line(r.URL.Path, 200))
}

// match compares a path with a route's. An image's name may have slashes in it.
func match(rt route, method string, segments []string) (ref, image string, ok bool) {
	want := strings.Split(rt.path, "/")
	if method != rt.method || len(segments) < len(want) {
		return "", "", false
	}
	last := len(want) - 1
	for i, w := range want {
		switch {
		case w == "{image}":
			end := len(segments) - (last - i)
			image = strings.Join(segments[i:end], "/")
			if image == "" {
				return "", "", false
			}
			segments = append(append([]string{}, segments[:i+1]...), segments[end:]...)
		case w == "{id}":
			ref = segments[i]
			if ref == "" {
				return "", "", false
			}
		case w != segments[i]:
			return "", "", false
		}
	}
	return ref, image, len(segments) == len(want)
}

// query keeps the parameters that the route knows. It leaves out empty ones, and refuses unknown
// and repeated ones.
func query(rt route, raw string) (url.Values, error) {
	sent, err := url.ParseQuery(raw)
	if err != nil {
		return nil, refusal{http.StatusBadRequest, "kbnode: the query is malformed; write it as Docker's own client does"}
	}
	kept := url.Values{}
	for name, values := range sent {
		form, known := rt.params[name]
		switch {
		case len(values) != 1:
			return nil, forbid("the parameter %.40q is set twice; write it once", name)
		case values[0] == "":
		case !known:
			return nil, forbid("%s %s: a job cannot set the parameter %.40q; leave it out", rt.method, rt.path, name)
		case len(values[0]) > maxString || !form.MatchString(values[0]):
			return nil, forbid("%s %s: the parameter %s cannot be %.80q; write it as Docker's own client does, or leave it out", rt.method, rt.path, name, values[0])
		default:
			kept.Set(name, values[0])
		}
	}
	return kept, nil
}
