package guard

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestAccounts starts containers of images whose account files the engine must not read.
func TestAccounts(t *testing.T) {
	t.Parallel()
	const plain, link = `{"size": 1048576, "mode": 420}`, `{"size": 9, "mode": 134218239, "linkTarget": "/x"}`
	for name, row := range map[string]struct {
		stats map[string]string
		want  string // in the refusal; "" for none
	}{
		"plain":                      {map[string]string{"/etc/passwd": plain, "/etc/group": plain}, ""},
		"none":                       {map[string]string{"/etc/passwd": "", "/etc/group": ""}, ""},
		"a link to a file":           {map[string]string{"/etc/passwd": link, "/x": plain, "/etc/group": ""}, ""},
		"a link that /dev covers":    {map[string]string{"/etc/passwd": strings.ReplaceAll(link, "/x", "/dev/x"), "/dev/x": plain, "/etc/group": ""}, "the image's /etc/passwd is not a regular file of"},
		"a link to nothing":          {map[string]string{"/etc/passwd": link, "/x": "", "/etc/group": ""}, "the image's /etc/passwd is not a regular file of at most 1 MiB"},
		"a FIFO":                     {map[string]string{"/etc/passwd": `{"size": 0, "mode": 33554852}`}, "the image's /etc/passwd is not a regular file of at most 1 MiB"},
		"a directory":                {map[string]string{"/etc/passwd": `{"mode": 2147484141}`}, "the image's /etc/passwd is not a regular file of at most 1 MiB"},
		"a device":                   {map[string]string{"/etc/group": `{"mode": 69206436}`}, "the image's /etc/group is not a regular file of"},
		"a link to a device":         {map[string]string{"/etc/passwd": link, "/x": `{"mode": 69206436}`}, "the image's /etc/passwd is not a regular file of at most 1 MiB"},
		"a link to a link":           {map[string]string{"/etc/group": link, "/x": link}, "the image's /etc/group is not a regular file of"},
		"a large file":               {map[string]string{"/etc/group": `{"size": 1048577, "mode": 420}`}, "the image's /etc/group is not a regular file of at most 1 MiB"},
		"no answer":                  {map[string]string{"/etc/group": "x"}, "check the image's accounts"},
		"a container that went away": {map[string]string{"/etc/passwd": "", "/etc/group": "", "/": ""}, "check the image's accounts"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ready(t)
			maps.Copy(r.engine.stats, row.stats)
			o := r.try(t)
			if started := r.engine.started(); (why(o) == "") != (row.want == "") || !strings.Contains(why(o), row.want) || started != (row.want == "") {
				t.Errorf("%+v, started: %t", o, started)
			}
			first := r.engine.views[0]
			if !strings.HasPrefix(first.Image, "sha256:") || first.Labels[slot.Label] != "" || first.HostConfig.Binds != nil {
				t.Errorf("looked into %+v", first)
			}
			if len(r.engine.containers) > 0 {
				t.Errorf("left is %v", r.engine.containers)
			}
			// The verdict is remembered.
			if row.want == "" {
				if o := r.try(t); why(o) != "" || len(r.engine.views) != 1 {
					t.Errorf("the second: %+v, looked %d times", o, len(r.engine.views))
				}
			}
		})
	}
}

// TestLongAccount refuses an image whose account files have a line that the engine does not read.
func TestLongAccount(t *testing.T) {
	t.Parallel()
	for size, fine := range map[int]bool{maxAccount - 1: true, maxAccount: false} {
		r := ready(t)
		r.engine.files = map[string]string{"/etc/passwd": strings.Repeat("x", size) + "\nroot:x:0:0::/:/bin/sh\n"}
		if o := r.try(t); (why(o) == "") != fine || !fine && !strings.Contains(o.Refused, "the image's /etc/passwd has a line of more than 60 KiB") {
			t.Errorf("%d bytes: %+v", size, o)
		}
	}
}

// TestPullFillsTheDisk removes an image that has filled the engine's disk, if the pull brought it.
func TestPullFillsTheDisk(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		image string
		full  func(pulled bool) bool
		asked []string // of the engine
		store string
	}{
		"by this image": {"absent", func(pulled bool) bool { return pulled }, []string{"DELETE /v1.45/images/docker.io/library/absent:latest"}, ""},
		"by another of its name": {"moves", func(pulled bool) bool { return pulled },
			[]string{"POST /v1.45/images/sha256:" + strings.Repeat("1", 64) + "/tag?", "DELETE /v1.45/images/sha256:" + strings.Repeat("2", 64)}, ""},
		"of containerd, which is not Docker's": {"absent", func(pulled bool) bool { return pulled }, []string{"DELETE /v1.45/images/docker.io/library/absent:latest"}, "io.containerd.snapshotter.v1"},
		"before":                               {"img", func(bool) bool { return true }, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ready(t, func(r *rig) {
				r.adjust = func(g *guard) {
					r.engine.store = row.store
					g.room = func(dir string) (int64, error) {
						r.engine.mu.Lock()
						defer r.engine.mu.Unlock()
						if (dir == r.engine.root) == (row.store != "") {
							return 0, nil
						}
						return map[bool]int64{true: -1}[row.full(r.engine.pulled)], nil
					}
				}
			})
			o := r.try(t, func(s *job.Spec) { s.Kind, s.Image, s.Pull = job.KindPlugin, row.image, job.PullAlways })
			if full := strings.Contains(why(o), "disk is nearly full") && strings.Contains(why(o), docker.RoomAdvice); !full && row.asked != nil {
				t.Errorf("%+v", o)
			}
			for _, request := range row.asked {
				if !r.engine.requested(request) {
					t.Errorf("the engine was not asked %s", request)
				}
			}
			if row.asked == nil && (r.engine.asked("/tag?") > 0 || r.engine.asked("DELETE /v1.45/images/") > 0) {
				t.Error("an image was removed")
			}
		})
	}
}

// TestImageByID looks for an image only under its name: the engine also takes the beginning of an ID. What it finds
// there is what runs, even if the name moves.
func TestImageByID(t *testing.T) {
	t.Parallel()
	whole := "sha256:" + strings.Repeat("1", 64)
	for image, row := range map[string]struct {
		root bool
		asks string // the engine, for this
	}{
		"1d": {false, "docker.io/library/1d:latest"}, "sha256:1d": {false, "docker.io/library/sha256:1d"}, "sha256:1111": {true, "docker.io/library/sha256:1111"},
		whole: {false, "docker.io/library/" + whole}, "ghcr.io/a/1d@" + whole: {false, "ghcr.io/a/1d@" + whole}, "a/1d:2@" + whole: {false, "docker.io/a/1d@" + whole},
		"index.docker.io/1d": {false, "docker.io/library/1d:latest"},
	} {
		r := ready(t, func(r *rig) {
			if row.root {
				asRoot(r)
			}
		})
		if o := r.try(t, func(s *job.Spec) { s.Image = image }); why(o) != "" || r.engine.created[0].Image != whole {
			t.Errorf("%s: %+v, ran %s", image, o, r.engine.created[0].Image)
		}
		first := slices.IndexFunc(r.engine.requests, func(s string) bool { return strings.HasPrefix(s, "GET /images/") })
		must.Equal(t, "GET /images/"+row.asks+"/json", r.engine.requests[first])
	}
	r := ready(t, asRoot)
	if o := r.try(t, func(s *job.Spec) { s.Image = whole }); why(o) != "" || !r.engine.requested("GET /images/"+whole+"/json") {
		t.Errorf("root's own: %+v, %q", o, r.engine.requests)
	}
}

// TestLargeImage does not ask the engine about an image with a large configuration, and removes what the job's pull
// brought.
func TestLargeImage(t *testing.T) {
	t.Parallel()
	id := func(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }
	names := func(ids ...string) string {
		return `{"Repositories": {"absent": {"absent:latest": "` + strings.Join(ids, "") + `"}}}`
	}
	for name, row := range map[string]struct {
		before, after string // the IDs of the image
		always        bool
		names         int // that it has besides
		want          string
		asked         []string // of the engine
	}{
		"that the node lacks":  {"", id("4"), false, 0, "its configuration has 1025 KiB", []string{"DELETE /v1.45/images/docker.io/library/absent:latest", "POST /v1.45/volumes/create"}},
		"that the node has":    {id("4"), id("4"), false, 0, "its configuration has 1025 KiB", nil},
		"that it still is":     {id("4"), id("4"), true, 0, "its configuration has 1025 KiB", []string{"POST /v1.45/images/create?"}},
		"that is new":          {id("1"), id("4"), true, 0, "its configuration has 1025 KiB", []string{"POST /v1.45/images/" + id("1") + "/tag?", "DELETE /v1.45/images/" + id("4")}},
		"that it was":          {id("4"), id("1"), true, 0, "", []string{"POST /v1.45/images/create?"}},
		"of many names":        {"", id("1"), false, maxImageNames, "", []string{"DELETE /v1.45/images/docker.io/library/absent:latest"}},
		"of many names before": {id("1"), id("1"), true, maxImageNames, "", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := ready(t)
			dir := filepath.Join(r.engine.root, "image")
			content := filepath.Join(dir, "imagedb", "content", "sha256")
			r.put(t, filepath.Join(content, strings.Repeat("1", 64)), "{}")
			r.put(t, filepath.Join(content, strings.Repeat("4", 64)), strings.Repeat(" ", 1<<20))
			has := func(id string) func() { return func() { r.put(t, filepath.Join(dir, "repositories.json"), names(id)) } }
			has(row.before)()
			r.engine.onPull, r.engine.pulled, r.engine.names = has(row.after), row.before != "", row.names
			o := r.try(t, func(s *job.Spec) {
				s.Image = "absent"
				if row.always {
					s.Pull = job.PullAlways
				}
			})
			if !strings.Contains(o.Refused, row.want) || (why(o) == "") != (row.want == "") || r.engine.started() != (row.want == "") {
				t.Errorf("%+v", o)
			}
			for _, request := range row.asked {
				if !r.engine.requested(request) {
					t.Errorf("the engine was not asked %s", request)
				}
			}
			if row.asked == nil && (r.engine.asked("DELETE /v1.45/images/") > 0 || r.engine.asked("volumes") > 0) {
				t.Error("an image was removed")
			}
			if r.engine.asked(id("4")+"/json") > 0 || r.engine.requested("GET /images/"+id("4")) {
				t.Error("the engine was asked for the configuration")
			}
		})
	}
}

// TestPullNeedsLogin pulls images that their registry gives to no one without a login.
func TestPullNeedsLogin(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("DOCKER_CONFIG", dir)
	must.Do(t, os.WriteFile(filepath.Join(dir, "config.json"), []byte(`{"auths":{"https://index.docker.io/v1/":{"auth":"dTpzM2NyZXQ="}}}`), 0o600))
	for name, row := range map[string]struct {
		image, node string
		want        string // why it does not run; "" if it does
	}{
		"an image that is here":             {"img", "absent", ""},
		"the node's image":                  {"docker.io/library/img:latest", "img", ""},
		"the node's image, which is absent": {"absent", "absent", "sudo kbnode image update"},
		"another that is absent":            {"absent", "img", "sudo docker pull"},
	} {
		t.Run(name, func(t *testing.T) {
			r := ready(t, func(r *rig) { r.policy.NodeImage = row.node })
			r.engine.fault = func(req *http.Request) int {
				if req.URL.Path != "/images/create" {
					return 0
				}
				if login := req.Header.Get("X-Registry-Auth"); login != "" {
					t.Errorf("sent %q", login)
				}
				return http.StatusForbidden
			}
			o := r.try(t, func(s *job.Spec) { s.Kind, s.Image, s.Pull = job.KindPlugin, row.image, job.PullAlways })
			if (why(o) == "") != (row.want == "") || !strings.Contains(o.NodeFault, row.want) || o.Refused != "" {
				t.Errorf("%+v", o)
			}
			must.Equal(t, 1, r.engine.asked("POST /v1.45/images/create"))
		})
	}
}

// TestPullMissing does not run the node's copy of an image that its registry no longer has.
func TestPullMissing(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		image, says string
		refused     bool
		runs        bool
	}{
		"deleted":          {"img", "manifest for img:latest not found: manifest unknown: manifest unknown", true, false},
		"never there":      {"absent", "manifest unknown", true, false},
		"for another":      {"img", "no matching manifest for linux/amd64 in the manifest list entries", true, false},
		"maybe private":    {"img", "pull access denied for img, repository does not exist or may require 'docker login'", false, true},
		"too many pulls":   {"img", "toomanyrequests: You have reached your unauthenticated pull rate limit", false, true},
		"a registry's own": {"img", "received unexpected HTTP status: 502 Bad Gateway", false, false},
	} {
		r := ready(t)
		r.engine.pullError = row.says
		o := r.try(t, func(s *job.Spec) { s.Image, s.Pull = row.image, job.PullAlways })
		if (o.Refused != "") != row.refused || (why(o) == "") != row.runs || r.engine.started() != row.runs || row.refused && !strings.Contains(o.Refused, "push it to the registry") {
			t.Errorf("%s: %+v", name, o)
		}
	}
}

// TestKeptImageIsNotPulled says so to a job that asks for the newest.
func TestKeptImageIsNotPulled(t *testing.T) {
	t.Parallel()
	for _, kept := range []string{"img", "other"} {
		r := ready(t, func(r *rig) { r.policy.KeptImage = kept })
		o := r.try(t, func(s *job.Spec) { s.Image, s.Pull = "img", job.PullAlways })
		says := strings.Contains(r.noted, "kbnode keeps docker.io/library/img:latest up to date")
		if pulls := r.engine.asked("POST /v1.45/images/create"); why(o) != "" || says != (kept == "img") || (pulls == 0) != says {
			t.Errorf("%s: %+v, %q, %d pulls", kept, o, r.noted, pulls)
		}
	}
}

func TestMayPull(t *testing.T) {
	t.Parallel()
	names := map[string][]string{
		"lan.example": {"10.0.0.9"},
		"reg.example": {"93.184.215.14", "2606:2800:21f:cb07:6820:80da:af6b:8b2c"}, "rebind.example": {"93.184.215.14", "127.0.0.1"},
		"localhost": {"127.0.0.1"}, "LOCALHOST": {"::1"}, "meta.example": {"169.254.169.254"}, "mapped.example": {"::ffff:10.0.0.1"},
		"nat64.example": {"64:ff9b::a00:1"}, "nat64ok.example": {"64:ff9b::5db8:d70e"}, "ula.example": {"fc00::1"}, "ll.example": {"fe80::1%eth0"},
		"six.example": {"2002:a00:1::1"}, "this.example": {"203.0.113.7"}, "compat.example": {"::127.0.0.1"},
		"siit.example": {"::ffff:0:7f00:1"}, "teredo.example": {"2001:0:7f00:1::1"}, "unassigned.example": {"4000::1"}, "nodata.example": {},
	}
	r := registries{
		listed: []string{"10.0.0.5:5000", "Lan.example"},
		lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			list, ok := names[host]
			switch {
			case strings.HasPrefix(host, "servfail"):
				return nil, &net.DNSError{Err: "server misbehaving", IsTemporary: true}
			case strings.HasPrefix(host, "timeout"):
				return nil, &net.DNSError{Err: "i/o timeout", IsTimeout: true, IsTemporary: true}
			case !ok:
				return nil, &net.DNSError{Err: "no such host", IsNotFound: true}
			}
			var addrs []netip.Addr
			for _, a := range list {
				addrs = append(addrs, netip.MustParseAddr(a))
			}
			return addrs, nil
		},
		own:     func() ([]net.Addr, error) { return []net.Addr{&net.IPNet{IP: net.ParseIP("203.0.113.7")}}, nil },
		proxied: func(_ context.Context, registry string) bool { return strings.HasPrefix(registry, "servfail-proxy.") },
	}
	for image, want := range map[string]bool{
		"python": true, "gpu-mode/eval:1": true, "docker.io/a/b": true, "index.docker.io/a/b": true,
		"reg.example/a/b:1": true, "reg.example:8443/a": true, "93.184.215.14/a": true, "nat64ok.example/a": true,
		"10.0.0.5:5000/a": true, "lan.example/a": true,
		"10.0.0.5/a": false, "10.0.0.5:5001/a": false, "lan.example:5000/a": false, // another port is another service
		"localhost/a": false, "localhost:5000/a": false, "LOCALHOST/a": false, "127.0.0.1:5000/a": false, "127.0.0.53/a": false,
		"169.254.169.254/latest": false, "100.100.100.200/a": false, "168.63.129.16/a": false, "192.168.1.1/a": false, "172.16.0.1/a": false,
		"172.31.255.255/a": false, "0.0.0.0/a": false, "255.255.255.255/a": false, "224.0.0.1/a": false, "198.18.0.1/a": false,
		"127.1/a": false, "2130706433:80/a": false, "0x7f000001:80/a": false, "0x7f.1/a": false, "017700000001:80/a": false, "127.0.0.0x1/a": false,
		"rebind.example/a": false, "meta.example/a": false, "mapped.example/a": false, "nat64.example/a": false, "ula.example/a": false,
		"ll.example/a": false, "six.example/a": false, "compat.example/a": false, "this.example/a": false,
		"siit.example/a": false, "teredo.example/a": false, "unassigned.example/a": false, "[::1]/a": false, "[::1]:5000/a": false, "[::ffff:7f00:1]:5000/a": false,
		"[2606:2800:21f:cb07:6820:80da:af6b:8b2c]/a": true,
		// The engine's question may have another answer.
		"unknown.example/a": false, "servfail.example/a": false, "timeout.example:5000/a": false, "nodata.example/a": false,
		"servfail-proxy.example/a": true,
	} {
		if err := r.mayPull(t.Context(), image); (err == nil) != want {
			t.Errorf("%s: %v", image, err)
		}
	}
}

// TestRegistryWithoutAddress pulls from no registry of which DNS does not say where it is, and tells a name that does
// not exist, the job's fault, from DNS that fails.
func TestRegistryWithoutAddress(t *testing.T) {
	t.Parallel()
	for absent, want := range map[bool]string{true: "check the image's name", false: "job.private_registries"} {
		r := ready(t, func(r *rig) {
			r.adjust = func(g *guard) {
				g.registries.lookup = func(context.Context, string) ([]netip.Addr, error) {
					return nil, &net.DNSError{Err: "server misbehaving", IsNotFound: absent}
				}
			}
		})
		o := r.try(t, func(s *job.Spec) { s.Image = "reg.example/absent" })
		if (o.Refused != "") != absent || !strings.Contains(why(o), want) || r.engine.asked("POST /v1.45/images/create") > 0 {
			t.Errorf("%+v", o)
		}
	}
}

// TestUnreadAddresses makes it the node's fault that its own addresses cannot be read.
func TestUnreadAddresses(t *testing.T) {
	t.Parallel()
	r := ready(t, func(r *rig) {
		r.adjust = func(g *guard) {
			g.registries.lookup = func(context.Context, string) ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr("93.184.215.14")}, nil
			}
			g.registries.own = func() ([]net.Addr, error) { return nil, errors.New("too many open files") }
		}
	})
	if o := r.try(t, func(s *job.Spec) { s.Image = "reg.example/absent" }); !strings.Contains(o.NodeFault, "too many open files") || r.engine.asked("POST /v1.45/images/create") > 0 {
		t.Errorf("%+v", o)
	}
}

// TestPullQuotesNothing tells the job of a pull that failed no more than the status.
func TestPullQuotesNothing(t *testing.T) {
	t.Parallel()
	const page = `: "<html>a page of http://127.0.0.1:8080"`
	for says, want := range map[string]string{
		"error parsing HTTP 403 response body: invalid character '<' looking for beginning of value" + page: "HTTP status 403",
		"error parsing HTTP 500 response body: denied" + page:                                               "HTTP status 500",
		"Get " + page + ": dial tcp 127.0.0.1:8080: connect: connection refused":                            "does not give it",
		"unexpected status from HEAD request to " + page + ": 404 Not Found":                                "HTTP status 404",
		"write /var/lib/docker/tmp/x: no space left on device" + page:                                       "disk is full",
	} {
		for _, image := range []string{"absent", "img"} {
			r := ready(t)
			r.engine.pullError = says
			spec, log := rootSpec("0190"), ""
			spec.Kind, spec.Image, spec.Pull = job.KindPlugin, image, job.PullAlways
			o, err := bootstrap.RunSpec(t.Context(), r.socket, spec, func(_ slot.FrameKind, text []byte) { log += string(text) })
			must.Do(t, err)
			log += why(o)
			if strings.Contains(log, "page") || strings.Contains(log, "127.0.0.1") || !strings.Contains(log, want) {
				t.Errorf("%s: %s", image, log)
			}
		}
	}
}

func TestPullFromPrivateRegistry(t *testing.T) {
	t.Parallel()
	for image, want := range map[string]bool{"127.0.0.1:5000/absent": false, "169.254.169.254/absent": false, "127.0.0.2:5000/absent": true} {
		r := ready(t, func(r *rig) { r.policy.Registries = []string{"127.0.0.2:5000"} })
		o := r.try(t, func(s *job.Spec) { s.Image = image })
		if refused := strings.Contains(o.Refused, "job.private_registries"); refused == want {
			t.Errorf("%s: %+v", image, o)
		}
		must.Equal(t, want, r.engine.requested("POST /v1.45/images/create?fromImage="+url.QueryEscape(strings.TrimSuffix(image, ":1"))))
	}
}
