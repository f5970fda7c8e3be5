package image

import (
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// stage is an engine and the guard of a slot, with one container.
type stage struct {
	work   string      // of the slot
	result string      // what the container leaves; "" for nothing
	loose  bool        // it leaves the result only in the compatible profile
	mode   os.FileMode // of the result
	gone   bool        // the start of a job has removed it
	exit   string

	profile string // the requested one
	created map[string]any
	name    string
	removed []string
}

func (s *stage) serve(t *testing.T) *Machine {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.45") })
	on := func(pattern string, answer func(r *http.Request) (int, string)) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" /v1.45"+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			status, text := answer(r)
			w.WriteHeader(status)
			_, _ = io.WriteString(w, text)
		})
	}
	always := func(status int, text string) func(*http.Request) (int, string) {
		return func(*http.Request) (int, string) { return status, text }
	}
	on("GET /containers/json", always(200, `[{"Id":"old","Names":["/kbnode-gpu77-kbnode-canary"]},{"Id":"job","Names":["/kbnode-gpu3-x-kbnode-gpu77-kbnode-canary"]},{"Id":"other","Names":["/kbnode-gpu7-kbnode-canary"]}]`))
	on("GET /images/json", always(200, `[]`))
	on("GET /networks", always(200, `[]`))
	on("GET /volumes", always(200, `{}`))
	on("POST /containers/create", func(r *http.Request) (int, string) {
		s.name = r.URL.Query().Get("name")
		s.created = nil
		_ = json.NewDecoder(r.Body).Decode(&s.created)
		env, _ := s.created["Env"].([]any)
		s.profile, _ = strings.CutPrefix(env[len(env)-1].(string), "KBNODE_PROFILE=")
		return 201, `{"Id":"c1"}`
	})
	on("POST /containers/c1/start", func(*http.Request) (int, string) {
		if s.result != "" && (!s.loose || s.profile == "compatible") {
			if err := os.WriteFile(filepath.Join(s.work, canaryName, "result.json"), []byte(s.result), s.mode); err != nil {
				t.Error(err)
			}
		}
		return 204, ""
	})
	on("POST /containers/c1/wait", always(200, `{"StatusCode":0}`))
	on("GET /containers/c1/json", func(*http.Request) (int, string) {
		if s.gone {
			return 404, `{"message":"No such container: c1"}`
		}
		return 200, `{"Id":"c1","State":{"Status":"exited","ExitCode":` + s.exit + `},"Config":{},"HostConfig":{}}`
	})
	on("GET /containers/c1/logs", always(200, ""))
	mux.HandleFunc("DELETE /", func(w http.ResponseWriter, r *http.Request) {
		s.removed = append(s.removed, filepath.Base(r.URL.Path))
		w.WriteHeader(204)
	})
	socket := filepath.Join(t.TempDir(), "docker.sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: mux}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	engine, err := docker.New(socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close() })
	s.work = t.TempDir()
	return &Machine{Engine: engine, Policies: []plan.JobPolicy{{Slot: 77, Name: "gpu77", Slice: plan.SliceName(77), WorkRoot: s.work, Socket: socket}}}
}

func TestCanary(t *testing.T) {
	t.Parallel()
	const good = `{"success":true,"error":"","system":{"gpu":"NVIDIA H100\n","torch":"2.9"},"runs":{"test":{"run":{"passed":true}}}}`
	for _, tt := range []struct {
		name string
		node string // its profile; "" is compatible
		s    stage
		want Canary
		err  error
	}{
		{name: "a good image", s: stage{result: good, mode: 0o644, exit: "0"}, want: Canary{Passed: true, Profile: "strict", Uploadable: true, Slot: "gpu77", GPU: "NVIDIA H100", Torch: "2.9"}},
		{name: "one that needs root", s: stage{result: good, loose: true, mode: 0o644, exit: "0"}, want: Canary{
			Passed: true, Profile: "compatible", NotStrict: "it left no result and exited with 0:", Uploadable: true, Slot: "gpu77", GPU: "NVIDIA H100", Torch: "2.9",
		}},
		{name: "one that needs root on a strict node", node: "strict", s: stage{result: good, loose: true, mode: 0o644, exit: "0"}, want: Canary{
			Profile: "strict", Slot: "gpu77", Reason: "it left no result and exited with 0:",
		}},
		{name: "one whose result stays its own", s: stage{result: good, mode: 0o600, exit: "0"}, want: Canary{Profile: "compatible", Slot: "gpu77", GPU: "NVIDIA H100", Torch: "2.9", Reason: "it leaves a result.json that the agent cannot read and upload"}},
		{name: "one that says so and fails", s: stage{result: good, mode: 0o600, exit: "1"}, want: Canary{Profile: "compatible", Slot: "gpu77", GPU: "NVIDIA H100", Torch: "2.9", Reason: "the submission exited with 0"}},
		{name: "one without a result", s: stage{exit: "127"}, want: Canary{Profile: "compatible", Slot: "gpu77", Reason: "it left no result and exited with 127:"}},
		{name: "cleared away by a job", s: stage{gone: true}, err: ErrKilled},
		{name: "killed", s: stage{exit: "137"}, err: ErrKilled},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := tt.s
			m := s.serve(t)
			m.Policies[0].Profile = cmp.Or(tt.node, "compatible")
			// Files of an earlier canary must not count.
			if err := errors.Join(os.Mkdir(filepath.Join(s.work, canaryName), 0o700), os.WriteFile(filepath.Join(s.work, canaryName, "result.json"), []byte(good), 0o600)); err != nil {
				t.Fatal(err)
			}
			got, err := m.Canary(t.Context(), Slot{Index: 77, Name: "gpu77"}, id(1))
			if !errors.Is(err, tt.err) {
				t.Fatalf("%v, want %v", err, tt.err)
			}
			got.Time, got.Seconds = tt.want.Time, 0
			if d := gocmp.Diff(tt.want, got); d != "" && tt.err == nil {
				t.Error(d)
			}
			if _, err := os.Stat(filepath.Join(s.work, canaryName)); !os.IsNotExist(err) {
				t.Errorf("its directory stays: %v", err)
			}
			if n := len(s.removed); n%2 != 0 || n == 0 || slices.ContainsFunc(s.removed, func(id string) bool { return id != "old" }) {
				t.Errorf("removed before and after: %q", s.removed)
			}
			host, _ := s.created["HostConfig"].(map[string]any)
			env, _ := s.created["Env"].([]any)
			made := map[string]any{"name": s.name, "image": s.created["Image"], "entrypoint": s.created["Entrypoint"], "cmd": s.created["Cmd"], "network": host["NetworkMode"], "binds": host["Binds"]}
			want := map[string]any{
				"name": canaryName, "image": id(1), "entrypoint": []any{plan.ContainerBinary}, "cmd": []any{"runner", "--workdir", "/work"},
				"network": "none", "binds": []any{s.work + "/" + canaryName + ":/work"},
			}
			if d := gocmp.Diff(want, made); d != "" {
				t.Error(d)
			}
			if len(env) != 2 {
				t.Fatalf("its environment is %q", env)
			}
			text, ok := strings.CutPrefix(env[0].(string), payload.Var+"=")
			if _, err := payload.Decode(text, payload.Limits{}); err != nil || !ok {
				t.Errorf("its payload is %q: %v", env, err)
			}
		})
	}
}

func TestSlots(t *testing.T) {
	t.Parallel()
	s := &stage{}
	m := s.serve(t)
	got, err := m.Slots(t.Context())
	if d := gocmp.Diff([]Slot{{Index: 77, Name: "gpu77"}}, got); d != "" || err != nil {
		t.Error(d, err)
	}
	m.Policies[0].Socket += ".gone"
	got, err = m.Slots(t.Context())
	if err != nil || !strings.Contains(got[0].Away, "systemctl status kbnode-guard-gpu77.service") {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestVariant(t *testing.T) {
	t.Parallel()
	for want, vendors := range map[string][]string{
		"cuda": {"nvidia", "nvidia"}, "rocm": {"amd"}, "cpu": {""},
		"its slots need different ones: cuda, rocm": {"nvidia", "amd", "nvidia"},
		ErrNoNode.Error(): nil,
	} {
		var slots []plan.JobPolicy
		for _, v := range vendors {
			slots = append(slots, plan.JobPolicy{Vendor: v})
		}
		got, err := Variant(slots)
		if err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%q: %s, want %s", vendors, got, want)
		}
	}
}
