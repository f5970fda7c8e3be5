package cache

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	at  = "https://api.example"
	doc = `{"lang": "py", "mode": "test", "main": "a.py", "sources": {"a.py": "x", "submission.py": "y"}, "tests": [{"n": 1}], "arch": null}`
)

// tags are those of an agent.
var tags = []string{
	"queue=b200", "gpu-index=3", "node=n", "gpu-uuid=GPU-1", "numa=0", "slots=8", "time-limit=120m", "site=x",
	"kbnode=1.2.3", "image=121212121212", "gpu-model=NVIDIA-B200", "gpu-part=1g.23gb", "gpus=2", "gpu-memory=180", "sm=100", "gfx=942", "driver=580.95.05", "cuda=13.0",
}

func request() submit.Request {
	return submit.Request{
		RunID: "run-1", Message: "kbnode submit: x, test", Payload: doc,
		Target: submit.Target{Org: "o", Pipeline: "p", Queue: "b200", Branch: "main", Image: "img:1", Inline: true, RunTime: 20 * time.Minute, QueueTime: time.Minute},
	}
}

// retagged returns tags with one that has another value, or that is new.
func retagged(key, value string) []string {
	all := slices.DeleteFunc(slices.Clone(tags), func(t string) bool { return strings.HasPrefix(t, key+"=") })
	if value == "" {
		return all
	}
	return append(all, key+"="+value)
}

// TestKey changes each part of a submission: what decides its result changes the key, and nothing else does.
func TestKey(t *testing.T) {
	t.Parallel()
	key := func(at string, r submit.Request, tags []string) Key {
		kind, err := kindOf(tags)
		must.Do(t, err)
		k, err := KeyOf(at, r, kind)
		must.Do(t, err)
		return k
	}
	first := key(at, request(), tags)
	if len(first) != 64 {
		t.Errorf("the key is %s", first)
	}
	changed := func(f func(*submit.Request)) submit.Request { r := request(); f(&r); return r }
	payload := func(old, text string) submit.Request {
		return changed(func(r *submit.Request) {
			r.Payload = strings.Replace(doc, old, text, 1)
			if r.Payload == doc {
				t.Errorf("%s is not in the payload", old)
			}
		})
	}
	for name, r := range map[string]submit.Request{
		"run ID": changed(func(r *submit.Request) { r.RunID = "run-2" }), "message": changed(func(r *submit.Request) { r.Message = "x" }),
		"priority": changed(func(r *submit.Request) { r.Priority = 100 }), "queue time": changed(func(r *submit.Request) { r.QueueTime = time.Hour }), "force": changed(func(r *submit.Request) { r.Force = true }),
		"blanks": payload(`: `, ":\n"), "a label": payload(`{`, `{"user_name": "me", "submission_time": "2026-03-01", `), "an escape": payload(`"x"`, `"\u0078"`), "a duplicate": payload(`"arch": null`, `"arch": "90", "arch": null`),
	} {
		if key(at, r, tags) != first {
			t.Errorf("%s: another key", name)
		}
	}
	for _, tag := range []string{"gpu-index", "node", "gpu-uuid", "numa", "slots", "time-limit", "site", "new"} {
		if key(at, request(), retagged(tag, "other")) != first {
			t.Errorf("tag %s: another key", tag)
		}
	}

	keys := map[Key]string{first: "the first"}
	other := func(name string, k Key) {
		if keys[k] != "" {
			t.Errorf("%s: the key of %s", name, keys[k])
		}
		keys[k] = name
	}
	other("API", key("https://api.other", request(), tags))
	for name, r := range map[string]submit.Request{
		"organization": changed(func(r *submit.Request) { r.Org = "o2" }), "pipeline": changed(func(r *submit.Request) { r.Pipeline = "p2" }),
		"both": changed(func(r *submit.Request) { r.Org, r.Pipeline = "o p", "" }), "both, divided": changed(func(r *submit.Request) { r.Org, r.Pipeline = "o", "p " }), "queue": changed(func(r *submit.Request) { r.Queue = "h100" }),
		"branch": changed(func(r *submit.Request) { r.Branch = "dev" }), "image": changed(func(r *submit.Request) { r.Image = "img:2" }),
		"profile": changed(func(r *submit.Request) { r.Profile = "compatible" }), "time limit": changed(func(r *submit.Request) { r.RunTime = time.Hour }),
		"vendor": changed(func(r *submit.Request) { r.AMD = true }), "submission": payload(`"y"`, `"y "`), "problem": payload(`"x"`, `"z"`), "test": payload(`"n": 1`, `"n": 2`),
		"number": payload(`"n": 1`, `"n": 1.0`), "text": payload(`"n": 1`, `"n": "1"`), "arch": payload(`null`, `"100"`), "lang": payload(`"py"`, `"cu"`), "new member": payload(`{`, `{"other": 1, `),
	} {
		other(name, key(at, r, tags))
	}
	for tag := range strings.FieldsSeq("kbnode image gpu-model gpu-part gpus gpu-memory sm gfx driver cuda") {
		other("tag "+tag, key(at, request(), retagged(tag, "other")))
		if tag != "kbnode" && tag != "image" {
			other("no tag "+tag, key(at, request(), retagged(tag, "")))
		}
	}
	other("two tags in one", key(at, request(), retagged("driver", "580\"\ncuda=\"13.0")))
}

// TestKeyRefuses what has no result that could be kept, whatever was checked before.
func TestKeyRefuses(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*submit.Request){
		"only mode test": func(r *submit.Request) { r.Payload = strings.Replace(doc, `"test"`, `"leaderboard"`, 1) },
		"mode test is":   func(r *submit.Request) { r.Payload = strings.Replace(doc, `"test"`, `["test"]`, 1) },
		"is cached":      func(r *submit.Request) { r.Payload = strings.Replace(doc, `"mode"`, `"Mode"`, 1) },
		"--inline-steps": func(r *submit.Request) { r.Inline = false },
		"not UTF-8":      func(r *submit.Request) { r.Payload = strings.Replace(doc, `"y"`, "\"\xff\"", 1) },
		"not JSON":       func(r *submit.Request) { r.Payload = doc[1:] },
		"a JSON list":    func(r *submit.Request) { r.Payload = "[]" },
		"no queue":       func(r *submit.Request) { r.Queue = "" },
	} {
		r := request()
		change(&r)
		_, err := KeyOf(at, r, "x")
		must.Err(t, err, want)
	}
}

// TestQueueKind asks what the agents of a queue run on. Only if they all agree is it known.
func TestQueueKind(t *testing.T) {
	t.Parallel()
	like, err := kindOf(tags)
	must.Do(t, err)
	for _, tt := range []struct {
		name   string
		agents [][]string
		kind   Kind
		err    string
	}{
		{name: "none"},
		{name: "in another queue", agents: [][]string{retagged("queue", "h100")}},
		{name: "one", agents: [][]string{tags}, kind: like},
		{name: "many that agree", agents: [][]string{retagged("gpu-index", "0"), tags, retagged("node", "m"), append(retagged("driver", "1"), "out-of-service=drained")}, kind: like},
		{name: "another queue differs", agents: [][]string{tags, append(retagged("queue", "h100"), "image=0")}, kind: like},
		{name: "another image", agents: [][]string{tags, retagged("image", "343434343434")}, err: "the agents of queue b200 differ in image: n-0 has 121212121212, and n-1 has 343434343434"},
		{name: "another version", agents: [][]string{tags, tags, retagged("kbnode", "1.2.4\x1b[2J")}, err: "differ in kbnode: n-0 has 1.2.3, and n-2 has 1.2.4"},
		{name: "one has none", agents: [][]string{tags, {"queue=b200"}}, err: "differ in kbnode: n-0 has 1.2.3, and n-1 has none"},
		{name: "no image", agents: [][]string{retagged("image", "")}, err: "agent n-0: its tags do not name the image of its jobs"},
		{name: "no version", agents: [][]string{{"queue=b200"}}, err: "agent n-0: its tags have no version"},
		{name: "any version", agents: [][]string{retagged("kbnode", unversioned)}, err: "agent n-0: its kbnode has no version of its own"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := bktest.New(bktest.Options{})
				ctx, stop := context.WithCancel(t.Context())
				for i, tags := range tt.agents {
					must.Do(t, s.Employ(ctx, bktest.Worker{Name: "n-" + string(rune('0'+i)), Tags: tags, Do: func(context.Context, *bktest.Work) {}}))
				}
				client, err := buildkite.New(buildkite.Options{URL: "http://buildkite.test", Token: bktest.DefaultAPIToken, Network: s.Wire()})
				must.Do(t, err)
				kind, err := QueueKind(ctx, client, "kbnode", "b200")
				must.Err(t, err, tt.err)
				if kind != tt.kind {
					t.Errorf("got %q", kind)
				}
				stop()
				synctest.Wait()
			})
		})
	}
}
