package job_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestParseRefuses tests that a reader gets nothing that Read would not have written.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	good := read(t, attack(jobtest.Options(`"image":"a","volumes":["./x:/x"],"tmpfs":["/y:ro"],"user":"1000","ulimits":["stack=1"],"environment":["A=1"]`)))
	text := same(t, good)
	swap := func(old, new string) []byte {
		if !bytes.Contains(text, []byte(old)) {
			t.Fatalf("the spec has no %s: %s", old, text)
		}
		return bytes.Replace(text, []byte(old), []byte(new), 1)
	}
	for name, tt := range map[string]struct {
		text  []byte
		field string // "" for another version's
	}{
		"nothing":              {nil, ""},
		"half":                 {text[:len(text)/2], ""},
		"more":                 {append(bytes.Clone(text), '1'), ""},
		"white space":          {append(bytes.Clone(text), '\n'), ""},
		"an unknown field":     {swap(`{"kind"`, `{"privileged":true,"kind"`), ""},
		"a field twice":        {swap(`"user":"1000"`, `"user":"1000","user":"1001"`), ""},
		"a field in capitals":  {swap(`"user":"1000"`, `"User":"1000"`), ""},
		"another type":         {swap(`"init":true`, `"init":"true"`), ""},
		"too much":             {bytes.Repeat([]byte(" "), 17<<20), "spec"},
		"another kind":         {swap(`"kind":"plugin"`, `"kind":"host"`), "kind"},
		"no image":             {swap(`"image":"a"`, `"image":""`), "image"},
		"an image of the node": {swap(`"kind":"plugin"`, `"kind":"node"`), "image"},
		"another pull":         {swap(`"pull":"missing"`, `"pull":"never"`), "always-pull"},
		"a network":            {swap(`"network":"bridge"`, `"network":"host"`), "network"},
		"a profile":            {swap(`"profile":"compatible"`, `"profile":""`), "KBNODE_PROFILE"},
		"a user and a user":    {swap(`"slot_user":false`, `"slot_user":true`), "user"},
		"a mount above":        {swap(`"source":"x"`, `"source":"../x"`), "volumes"},
		"a mount of the node":  {swap(`"source":"x"`, `"source":"/etc"`), "volumes"},
		"a mount not clean":    {swap(`"source":"x"`, `"source":"y/../x"`), "volumes"},
		"a mount twice":        {swap(`"target":"/x"`, `"target":"/workdir"`), "volumes"},
		"a target above":       {swap(`"target":"/x"`, `"target":"/x/../proc"`), "volumes"},
		"a tmpfs over a mount": {swap(`"target":"/y"`, `"target":"/x"`), "tmpfs"},
		"an option of tmpfs":   {swap(`"ro"`, `"ro,bind"`), "tmpfs"},
		"a limit":              {swap(`"hard":1`, `"hard":-2`), "ulimits"},
		"a variable":           {swap(`"name":"A"`, `"name":"NVIDIA_VISIBLE_DEVICES"`), "environment"},
		"a variable twice":     {swap(`"env":[`, `"env":[{"name":"A","value":""},`), "environment"},
		"a checkout":           {swap(`"mode":"mirror"`, `"mode":"host"`), "checkout"},
		"no checkout":          {swap(`"mode":"mirror"`, `"mode":"none"`), "BUILDKITE_REPO"},
		"a repository":         {swap(`"https://github.com/gpu-mode/kernelbot"`, `"ssh://github.com/x"`), "BUILDKITE_REPO"},
		"a file to upload":     {swap(`"pipeline_file":""`, `"pipeline_file":"a"`), "command"},
		"artifacts":            {swap(`"artifacts":[]`, `"artifacts":["/etc/*"]`), "artifact_paths"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := job.Parse(tt.text)
			if tt.field == "" {
				if _, no := errors.AsType[*job.Refusal](err); no || err == nil {
					t.Error(err)
				}
				return
			}
			refused(t, err, tt.field)
		})
	}
}

func TestValidateBounds(t *testing.T) {
	t.Parallel()
	good := read(t, attack(nil))
	long := strings.Repeat("x", 120_000)
	for name, tt := range map[string]struct {
		change func(*job.Spec)
		field  string
	}{
		"patterns":    {func(s *job.Spec) { s.Redact = make([]string, 2000) }, "BUILDKITE_REDACTED_VARS"},
		"a pattern":   {func(s *job.Spec) { s.Redact = []string{"a b"} }, "BUILDKITE_REDACTED_VARS"},
		"command":     {func(s *job.Spec) { s.Command = []string{long, long, long} }, "command"},
		"words":       {func(s *job.Spec) { s.Command = make([]string, 5000) }, "command"},
		"environment": {func(s *job.Spec) { s.Env = vars(30, long) }, "environment"},
		"variables":   {func(s *job.Spec) { s.Env = vars(5000, "") }, "environment"},
		"all of exec": {func(s *job.Spec) { s.Env, s.Command = vars(16, long), []string{long, long} }, "environment"},
		"a small stack": {func(s *job.Spec) {
			s.Env, s.Ulimits = vars(3, long), []job.Ulimit{{Name: "stack", Soft: 1 << 20, Hard: 1 << 20}}
		}, "environment"},
		"memory":          {func(s *job.Spec) { s.Memory = 6<<20 - 1 }, "memory"},
		"no time":         {func(s *job.Spec) { s.Ulimits = []job.Ulimit{{Name: "cpu", Soft: 0, Hard: 1}} }, "ulimits"},
		"little data":     {func(s *job.Spec) { s.Ulimits = []job.Ulimit{{Name: "data", Soft: -1, Hard: 1 << 20}} }, "ulimits"},
		"a colon":         {func(s *job.Spec) { s.Workdir = "/a:b" }, "workdir"},
		"a mount's colon": {func(s *job.Spec) { s.Mounts = []job.Mount{{Source: ".", Target: "/x:ro"}} }, "volumes"},
		"a tmpfs's colon": {func(s *job.Spec) { s.Tmpfs = []job.Tmpfs{{Target: "/x:ro"}} }, "tmpfs"},
		"a long workdir":  {func(s *job.Spec) { s.Workdir = "/" + strings.Repeat("a", 5000) }, "workdir"},
		"a file to send":  {func(s *job.Spec) { s.Kind, s.Image, s.PipelineFile = job.KindUpload, "", "-x" }, "command"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := *good
			tt.change(&s)
			refused(t, s.Validate(), tt.field)
		})
	}
}

// TestTmpfsOptions tests which options the kernel takes, and takes as they are written: it reads 010m as 8 MiB, and 0 as no
// limit.
func TestTmpfsOptions(t *testing.T) {
	t.Parallel()
	for option, fine := range map[string]bool{
		"size=1g": true, "size=50%": true, "size=100%": true, "size=1000000000000000": true, "size=4096k": true, "nr_inodes=1k": true, "mode=1777": true, "uid=0": true, "gid=60000": true,
		"size=0": false, "size=0%": false, "size=010m": false, "size=0x10": false, "size=200%": false, "size=1t": false, "size=1z": false, "size=-1": false, "size=": false, "size=999999999999999g": false,
		"nr_inodes=5%": false, "nr_inodes=0": false, "nr_inodes=999999999999999g": false, "uid=010": false, "uid=9999999999": false, "gid=-1": false, "mode=8": false, "huge=always": false,
	} {
		_, err := job.Read(attack(jobtest.Options(`"image":"a","tmpfs":["/t:` + option + `"]`)))
		if fine && err != nil {
			t.Errorf("%s: %v", option, err)
		}
		if !fine {
			refused(t, err, "tmpfs")
		}
	}
}

// TestMountTarget tests where an image may have a volume.
func TestMountTarget(t *testing.T) {
	t.Parallel()
	for volume, want := range map[string]string{"/data/": "/data", "/a/../../b": "/b", "/dev/shm/x": "/dev/shm/x", "/": "", "/proc/x": "", "/dev/shm": "", "data": "", "/etc": "", "/etc/group": "", "/etc/x": "/etc/x", "/a:b": "", "/a\nb": "", "/" + strings.Repeat("a", 5000): ""} {
		if got, err := job.MountTarget(volume); got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", volume, got, err)
		}
	}
}

// TestFreeID tests the bounds of the IDs of users and groups.
func TestFreeID(t *testing.T) {
	t.Parallel()
	for id, free := range map[string]bool{"": true, "0": true, "app": true, "1000": true, "60000": true, "1": false, "999": false, "60001": false, "99999999999999999999": false, "kbnode-gpu1": false} {
		if job.FreeID(id) != free {
			t.Errorf("%q: %t", id, !free)
		}
	}
}

func vars(n int, value string) (list []job.Var) {
	for i := range n {
		list = append(list, job.Var{Name: fmt.Sprint("A", i), Value: value})
	}
	return list
}

// same tests that a spec is read as it was, and returns its text.
func same(t *testing.T, s *job.Spec) []byte {
	t.Helper()
	text, err := s.Marshal()
	must.Do(t, err)
	again, err := job.Parse(text)
	if err != nil {
		t.Fatalf("%v in %.2000s", err, text)
	}
	if diff := cmp.Diff(s, again); diff != "" {
		t.Fatal(diff)
	}
	return text
}

func FuzzRead(f *testing.F) {
	for _, tt := range jobtest.Hostile {
		in := attack(tt.Vars)
		f.Add(in.Env["BUILDKITE_PLUGINS"], in.Env["BUILDKITE_COMMAND"], in.Env["BUILDKITE_ARTIFACT_PATHS"], in.Env["BUILDKITE_REPO"], in.Env["BUILDKITE_BRANCH"], "X", in.Env["X"])
	}
	for _, o := range job.Options {
		name, _, _ := strings.Cut(o.Names, " ")
		for _, v := range []string{`"a"`, `true`, `["a","","b"]`, `{"a":1}`, `1.5`, `null`} {
			f.Add(with(name, v)["BUILDKITE_PLUGINS"], "true", "x", "https://github.com/gpu-mode/x", "main", "LIST", "A B")
		}
	}
	f.Fuzz(func(t *testing.T, plugins, command, artifacts, repo, branch, name, value string) {
		s, err := job.Read(build(map[string]string{
			"BUILDKITE_PLUGINS": plugins, "BUILDKITE_COMMAND": command, "BUILDKITE_ARTIFACT_PATHS": artifacts,
			"BUILDKITE_REPO": repo, "BUILDKITE_BRANCH": branch, name: value,
		}))
		if err != nil {
			r, ok := errors.AsType[*job.Refusal](err)
			if text := err.Error(); !ok || r.Field == "" || len(text) > 1000 || strings.ContainsFunc(text, unicode.IsControl) {
				t.Errorf("%T: %.2000q", err, text)
			}
			return
		}
		if text := same(t, s); len(text) > 8*(len(plugins)+len(command)+len(artifacts)+len(repo)+len(branch)+len(name)+len(value))+16<<10 {
			t.Errorf("the spec has %d bytes", len(text))
		}
	})
}

// TestAllows tests which addresses of a Spec a list allows.
func TestAllows(t *testing.T) {
	t.Parallel()
	both := config.DefaultRepositories
	for _, tt := range []struct {
		patterns []string
		address  string
		want     bool
	}{
		{both, "https://github.com/gpu-mode/kernelbot", true},
		{both, "https://github.com/gpu-mode/kernelbot.git", true},
		{[]string{`^git@github\.com:gpu-mode/x$`}, "https://github.com/gpu-mode/x", true},
		{[]string{`^ssh://git@github\.com/gpu-mode/x$`}, "https://github.com/gpu-mode/x", true},
		{[]string{`^git@github\.com:gpu-mode/x$`}, "https://gitlab.com/gpu-mode/x", false},
		{[]string{`^https://github\.com/a/x|https://github\.com/b/y$`}, "https://github.com/a/x", true},
		{[]string{`^https://github\.com/a/x|https://github\.com/b/y$`}, "https://github.com/b/y", true},
		{[]string{`^https://github\.com/a/x|https://github\.com/a/xyz$`}, "https://github.com/a/xyz", true},
		{[]string{`^https://github\.com/a/x|https://github\.com/b/y$`}, "https://github.com/a/x-of-others", false},
		{[]string{`^https://github\.com/a/x|https://github\.com/b/y$`}, "https://evil.example/https://github.com/b/y", false},
		{[]string{`^https://github\.com/a/x|git@github\.com:b/y$`}, "https://github.com/a/x/../../b/y", false},
		{[]string{`^https://github\.com/a/\$`}, "https://github.com/a/$x", false},
		{[]string{`^\Qhttps://github.com/a/x$`}, "https://github.com/a/x$x", false},
		{[]string{`^(?m)https://github\.com/a/x$`}, "https://github.com/a/x\n", false},
		{nil, "https://github.com/gpu-mode/x", false},
		{[]string{}, "https://github.com/gpu-mode/x", false},
		{[]string{"("}, "https://github.com/gpu-mode/x", false},
		{both, "https://github.com/other/x", false},
		{both, "https://GITHUB.com/gpu-mode/x", false},
		{both, "https://github.com./gpu-mode/x", false},
		{both, "https://github.com:443/gpu-mode/x", false},
		{both, "https://github.com/gpu-mode/x/y", false},
		{both, "https://github.com/gpu-mode/x\n", false},
		{both, "http://github.com/gpu-mode/x", false},
	} {
		if got := job.Allows(tt.patterns, tt.address); got != tt.want {
			t.Errorf("%q of %q: %v", tt.address, tt.patterns, got)
		}
	}
}

// TestAddresses refuses addresses that a pattern and git may read in two ways, whatever a node allows.
func TestAddresses(t *testing.T) {
	t.Parallel()
	for _, repo := range []string{
		"https://github.com@evil.example/gpu-mode/x", "https://u:p@github.com/gpu-mode/x", `https://evil.example\@github.com/gpu-mode/x`,
		"https://github.com/gpu-mode/%2e%2e/evil", "https://github.com/gpu-mode/../evil/x", "https://github.com/gpu-mode/..", "https://github.com/gpu-mode/x?a=b",
		"https://github.com/gpu-mode/x#y", "https://github.com//gpu-mode/x", "https://github.com:/gpu-mode/x", "https://[::1]/gpu-mode/x",
		"https://gıthub.com/gpu-mode/x", "https://github.com\u3002evil.example/x", "https://github.com/gpu-mode/x\n", "https://github.com/gpu-mode/x\x00", "https://github.com/gpu-mode/-x",
		"http://github.com/gpu-mode/x", "HTTPS://github.com/gpu-mode/x", "ext::sh -c x", "file:///etc", "/etc", "-uhttps://github.com/gpu-mode/x", "git@evil.example:gpu-mode/x",
		"ssh://git@github.com:22/gpu-mode/x", "git@github.com:../../x", "git@github.com:/gpu-mode/x", "https://github.com/gpu-mode/.git", "https://github.com/gpu-mode/" + strings.Repeat("x", 2000),
	} {
		in := attack(map[string]string{"BUILDKITE_REPO": repo})
		in.Repositories = []string{".*"}
		s, err := job.Read(in)
		if _, ok := errors.AsType[*job.Refusal](err); !ok {
			t.Errorf("%q: %+v, %v", repo, s, err)
		}
	}
}

// TestFillPipeline fills in what Buildkite sent, and nothing else.
func TestFillPipeline(t *testing.T) {
	t.Parallel()
	sent := []job.Var{{Name: "BRANCH", Value: "main"}, {Name: "E", Value: "sent"}}
	for text, want := range map[string]string{
		"steps: [{command: 'echo $BRANCH $$X ${TOKEN:-none}', agents: {queue: b200}}]": `{"steps":[{"agents":{"queue":"b200"},"command":"echo main $X none"}]}`,
		"env: {E: own, F: $E}\nsteps: [{command: $E$F}]":                               `{"env":{"E":"own","F":"own"},"steps":[{"command":"ownown"}]}`,
		"steps: [{command: '${TOKEN?give it}'}]":                                       "",
		"steps: [{command: '${BRANCH:1:9223372036854775807}'}]":                        "",
		"steps: [{command: '${BRANCH:1:2} ${BRANCH:9:9}'}]":                            `{"steps":[{"command":"ai "}]}`,
		"steps: [{deploy: all}]":                                                       `{"steps":[{"deploy":"all"}]}`, // the agent warns
		"steps: [wait]\n---\nsteps: [wait]\n":                                          "",
		"":                                                                             "",
		"a: [\x00":                                                                     "",
	} {
		got, err := job.FillPipeline(text, sent)
		if want == "" {
			refused(t, err, "command")
		} else if string(got) != want || err != nil {
			t.Errorf("%s: %s, %v", text, got, err)
		}
	}
}

// TestFillPipelineBounds refuses what would take the node's memory or time to fill in, before it does.
func TestFillPipelineBounds(t *testing.T) {
	t.Parallel()
	doubling := "env:\n  A: 0123456789\n"
	for i := range 12 {
		doubling += fmt.Sprintf("  %c: %s\n", 'B'+i, strings.Repeat("$"+string(rune('A'+i)), 10))
	}
	laughs := "x0: &x0 [" + strings.Repeat("l,", 9) + "]\n"
	for i := range 9 {
		laughs += fmt.Sprintf("x%d: &x%d [%s]\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*x%d,", i), 9))
	}
	merges := "x0: &x0 {a: 1}\n"
	for i := range 20 {
		merges += fmt.Sprintf("x%d: &x%d {<<: [%s]}\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d,", i), 9), ","))
	}
	sent := []job.Var{{Name: "LONG", Value: strings.Repeat("x", 100_000)}}
	for name, text := range map[string]string{
		"variables of variables":     doubling + "steps: [wait]",
		"a long variable, often":     "steps: [{command: '" + strings.Repeat("$LONG", 500) + "'}]",
		"in keys":                    "steps: [{command: x, env: {" + strings.Repeat("$LONG: a, ", 10) + "b: '" + strings.Repeat("$LONG", 200) + "'}}]",
		"in defaults":                "steps: [{command: '" + strings.Repeat("${NONE:-$LONG}", 500) + "'}]",
		"in messages":                "steps: [{command: '${NONE?" + strings.Repeat("$LONG", 500) + "}'}]",
		"substrings":                 "steps: [{command: '" + strings.Repeat("${LONG:0:99999}", 500) + "'}]",
		"other fields":               "x: '" + strings.Repeat("$LONG", 500) + "'\nsteps: [wait]",
		"escapes of JSON":            "steps: [{command: '" + strings.Repeat("<", 1<<20) + strings.Repeat("$LT", 20) + "'}]\nenv: {LT: '" + strings.Repeat("<", 100_000) + "'}",
		"aliases of aliases":         laughs + "steps: [wait]",
		"merges of merges":           merges + "steps: [wait]",
		"an alias of a long text":    "x: &x " + strings.Repeat("y", 100_000) + "\nsteps: [{command: [" + strings.Repeat("*x,", 500) + "]}]",
		"an alias of itself":         "x: &x [*x]\nsteps: [wait]",
		"an alias of a long default": "x: &x '" + strings.Repeat("${A:-x}", 10_000) + "'\nsteps: [{command: [" + strings.Repeat("*x,", 500) + "]}]",
		"nested defaults":            "steps: [{command: '" + strings.Repeat("${A:-", 10_000) + strings.Repeat("}", 10_000) + "'}]",
		"nested escapes":             "steps: [{command: '" + strings.Repeat("$${A:-", 60) + strings.Repeat("}", 60) + "'}]",
		"open escapes":               "steps: [{command: '" + strings.Repeat("$${A:-", 60) + "'}]",
		"levels":                     "steps: " + strings.Repeat("[", 5000) + strings.Repeat("]", 5000),
		"values":                     "steps: [" + strings.Repeat("a,", 300_000) + "]",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			done := make(chan error, 1)
			go func() {
				_, err := job.FillPipeline(text, sent)
				done <- err
			}()
			select {
			case err := <-done:
				refused(t, err, "command")
			case <-time.After(must.Patience):
				t.Fatal("it takes too long")
			}
		})
	}
	fine := "env: {A: $LONG}\nsteps: [{command: '" + strings.Repeat("$A${B:-${C:-$D}}$${E:-$$F}", 100) + "'}]"
	if got, err := job.FillPipeline(fine, sent); err != nil || len(got) < 10_000_000 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}
