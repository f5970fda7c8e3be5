package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/test/must"
)

const (
	good = `{"success":true,"error":"","system":{"gpu":"NVIDIA B200","device_count":1},"runs":{"test":{"run":{"success":true,"passed":true,"command":"x","exit_code":0,"duration":1.5,"result":{"test-count":"1","test.0.status":"pass","check":"pass"}}}}}` + "\n"
	bad  = `{"success":true,"error":"","system":{},"runs":{"test":{"run":{"success":true,"passed":false,"command":"x","exit_code":112,"duration":1.5,"result":{"test-count":"1","test.0.status":"fail","test.0.error":"wrong: a signal is not 7","check":"fail"}}}}}`
	node = `{"schema":2,"noisy":false,"image":{"name":"docker.io/library/img:1","id":"sha256:1212121212121212121212121212121212121212121212121212121212121212","kept":true},"memory":{"oom_kills":0}}`
)

// now is the file system's time, too.
var now = time.Now().UTC().Truncate(time.Second)

// outcome returns how a job with this result ended.
func outcome(t *testing.T, text string) submit.Outcome {
	t.Helper()
	exit := 0
	out := submit.Outcome{
		RunID: "run-1", Build: 7, URL: "https://buildkite.example/7", State: "passed", Verdict: submit.NotPassed, Agent: "n-gpu3", Tags: tags, Exit: &exit,
		Queue: 0.5, Run: 30, Raw: []byte(text), Node: []byte(node),
	}
	var err error
	out.Result, err = result.Read(out.Raw)
	must.Do(t, err)
	said, passed := out.Result.Verdict()
	out.Reason = said
	if passed {
		out.Verdict = submit.Passed
	}
	return out
}

// keyOf returns the key of a request on agents with tags.
func keyOf(t *testing.T, r submit.Request) Key {
	t.Helper()
	kind, err := kindOf(tags)
	must.Do(t, err)
	k, err := KeyOf(at, r, kind)
	must.Do(t, err)
	return k
}

// TestKeep keeps what the tests found, whether that is good or bad, for seven days.
func TestKeep(t *testing.T) {
	t.Parallel()
	c := &Cache{filepath.Join(t.TempDir(), "state", "results")}
	k := keyOf(t, request())
	got, err := c.Get(k, now)
	if got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	must.Do(t, c.Forget(k))
	for _, text := range []string{good, bad, good} {
		want := outcome(t, text)
		must.Do(t, c.Keep(at, request(), want, now))
		want.Cached, want.Node = now, nil
		for age, is := range map[time.Duration]bool{0: true, Kept: true, Kept + time.Second: false, -time.Minute: true, -time.Hour: false, -10 * Kept: false} {
			got, err := c.Get(k, now.Add(age))
			must.Do(t, err)
			if (got != nil) != is {
				t.Errorf("after %s: %+v", age, got)
			} else if is {
				said, passed := got.Result.Verdict()
				if said != want.Reason || passed != (want.Verdict == submit.Passed) {
					t.Errorf("%s, %v", said, passed)
				}
				got.Result, want.Result = nil, nil
				must.Equal(t, want, *got)
			}
		}
	}
	r := request()
	r.Payload = strings.Replace(doc, `"y"`, `"z"`, 1)
	if got, err := c.Get(keyOf(t, r), now); got != nil || err != nil {
		t.Errorf("another submission: %+v, %v", got, err)
	}
	for path, want := range map[string]os.FileMode{c.path(k): 0o600, c.dir: 0o700 | os.ModeDir} {
		info, err := os.Stat(path)
		must.Do(t, err)
		must.Equal(t, want, info.Mode())
	}
	must.Do(t, c.Forget(k))
	if got, err := c.Get(k, now); got != nil || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestKeepRefuses what the next job of the same submission may end with in another way, and what may be of another image.
func TestKeepRefuses(t *testing.T) {
	t.Parallel()
	exit := func(n int) *int { return &n }
	runs := func(text string) func(*submit.Outcome) {
		return func(o *submit.Outcome) {
			r, err := result.Read([]byte(text))
			must.Do(t, err)
			o.Result, o.Raw = r, []byte(text)
		}
	}
	record := func(old, text string) func(*submit.Outcome) {
		return func(o *submit.Outcome) { o.Node = []byte(strings.Replace(node, old, text, 1)) }
	}
	failed := func(old, text string) func(*submit.Outcome) {
		return func(o *submit.Outcome) { runs(strings.Replace(bad, old, text, 1))(o); o.Verdict = submit.NotPassed }
	}
	for name, tt := range map[string]struct {
		change func(*submit.Outcome)
		err    string // "" leaves it out without a word
	}{
		"timed out":                   {func(o *submit.Outcome) { o.Verdict = submit.TimedOut }, ""},
		"canceled":                    {func(o *submit.Outcome) { o.Verdict = submit.Cancelled }, ""},
		"no result":                   {func(o *submit.Outcome) { o.Verdict, o.Result = submit.NoResult, nil }, ""},
		"unknown":                     {func(o *submit.Outcome) { o.Verdict = submit.Unknown }, ""},
		"a build that failed":         {func(o *submit.Outcome) { o.State = "failed" }, "not what the tests found"},
		"the agent was lost":          {func(o *submit.Outcome) { o.Exit = exit(-1) }, "not what the tests found"},
		"no exit status":              {func(o *submit.Outcome) { o.Exit = nil }, "not what the tests found"},
		"a passed one that is not":    {runs(bad), "not what the tests found"},
		"a failed one that is not":    {func(o *submit.Outcome) { o.Verdict = submit.NotPassed }, "not what the tests found"},
		"its own error":               {runs(`{"success":false,"error":"x","runs":{},"system":{}}`), "not what the tests found"},
		"no runs":                     {runs(`{"success":true,"runs":{},"system":{}}`), "not what the tests found"},
		"another run":                 {runs(strings.Replace(good, `"test":{"run"`, `"benchmark":{"run"`, 1)), "not what the tests found"},
		"one run more":                {runs(strings.Replace(good, `"runs":{`, `"runs":{"leaderboard":{"run":null},`, 1)), "not what the tests found"},
		"does not compile":            {failed(`"run":{`, `"compilation":{"nvcc_found":true,"exit_code":1},"run":null,"x":{`), "not what the tests found"},
		"a time limit":                {failed(`112`, `114`), "not what the tests found"},
		"a signal":                    {failed(`112`, `-9`), "not what the tests found"},
		"a signal in a worker":        {failed(`"check":"fail"`, `"test.0.error":"signal 7 (Bus error) ended the submission's process","check":"fail"`), "not what the tests found"},
		"the end of a worker":         {failed(`"check":"fail"`, `"test.12.error":"the submission ended its process with exit code 1","check":"fail"`), "not what the tests found"},
		"no protocol":                 {failed(`"success":true,"passed"`, `"success":false,"passed"`), "not what the tests found"},
		"exit code 0 without a check": {failed(`112`, `0`), "not what the tests found"},
		"passed, and exit code 112":   {runs(strings.Replace(good, `"exit_code":0`, `"exit_code":112`, 1)), "not what the tests found"},

		"no record":       {func(o *submit.Outcome) { o.Node = nil }, "the node left no node.json"},
		"a lost record":   {func(o *submit.Outcome) { o.Node, o.NodeErr = nil, errors.New("download node.json: x") }, "download node.json: x"},
		"a broken record": {record(`{`, ``), "read node.json"},
		"another schema":  {record(`2`, `3`), "of another version"},
		"noisy":           {record(`false`, `true`), "disturbed"},
		"implausible":     {record(`"image"`, `"implausible":[{"evaluation":"test","reason":"x"}],"image"`), "times that cannot be"},
		"memory that is not known": {func(o *submit.Outcome) {
			runs(bad)(o)
			o.Verdict = submit.NotPassed
			record(`{"oom_kills":0}`, `{}`)(o)
		}, "node.json does not say whether memory ran out"},
		"no image":            {record(`"image"`, `"other"`), "none that its node keeps"},
		"an image of its own": {record(`true`, `false`), "none that its node keeps"},
		"another image":       {record(`sha256:12`, `sha256:13`), "not the one that its agent's tags name"},
		"no ID":               {record(`sha256:1212`, `sha256:`), "not the one that its agent's tags name"},
		"no tag of an image":  {func(o *submit.Outcome) { o.Tags = retagged("image", "") }, "not the one that its agent's tags name"},
		"no ID and no tag":    {func(o *submit.Outcome) { record(`sha256:12`, `12`)(o); o.Tags = retagged("image", "") }, "not the one that its agent's tags name"},
		"no version":          {func(o *submit.Outcome) { o.Tags = retagged("kbnode", "") }, "agent n-gpu3: its tags have no version"},
		"too large":           {runs(strings.Replace(good, `"pass"}`, `"pass","x":"`+strings.Repeat("x", maxEntry)+`"}`, 1)), "at most 2097152 are kept"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &Cache{t.TempDir()}
			out := outcome(t, good)
			tt.change(&out)
			must.Err(t, c.Keep(at, request(), out, now), tt.err)
			files, err := os.ReadDir(c.dir)
			must.Do(t, err)
			if len(files) > 0 {
				t.Errorf("kept: %v", files)
			}
		})
	}
	c := &Cache{t.TempDir()}
	r := request()
	r.Payload = strings.Replace(doc, `"test"`, `"leaderboard"`, 1)
	must.Err(t, c.Keep(at, r, outcome(t, good), now), "only mode test")
}

// TestFiles reads files that kbnode did not write, or not like this: none is an answer, and all but another version's are
// replaced.
func TestFiles(t *testing.T) {
	t.Parallel()
	k := keyOf(t, request())
	edited := func(old, text string) func(*testing.T, *Cache) {
		return func(t *testing.T, c *Cache) {
			t.Helper()
			whole := must.Read(t, c.path(k))
			changed := strings.Replace(whole, old, text, 1)
			if changed == whole {
				t.Errorf("%s is not in %s", old, whole)
			}
			must.Do(t, os.WriteFile(c.path(k), []byte(changed), 0o600))
		}
	}
	for name, tt := range map[string]struct {
		breaks func(*testing.T, *Cache)
		err    string
		stays  bool
	}{
		"cut":                     {func(t *testing.T, c *Cache) { t.Helper(); must.Do(t, os.Truncate(c.path(k), 100)) }, "unexpected end", false},
		"empty":                   {func(t *testing.T, c *Cache) { t.Helper(); must.Do(t, os.Truncate(c.path(k), 0)) }, "unexpected end", false},
		"null":                    {func(t *testing.T, c *Cache) { t.Helper(); must.Do(t, os.WriteFile(c.path(k), []byte("null"), 0o600)) }, "another version", true},
		"a newer version's":       {edited(`"schema":1`, `"schema":2,"outcome":"x"`), "remove it to keep results of this one", true},
		"of another submission":   {edited(string(k), strings.Repeat("0", 64)), "of another submission", false},
		"another verdict":         {edited(`"verdict":"passed"`, `"verdict":"not passed"`), "not what the tests found", false},
		"a verdict of none":       {edited(`"verdict":"passed"`, `"verdict":"yes"`), "not what the tests found", false},
		"another type":            {edited(`"build":7`, `"build":"7"`), "cannot unmarshal", false},
		"no result":               {edited(`"result_json":"`, `"result_json":"","x":"`), "not one JSON document", false},
		"a file for all to write": {func(t *testing.T, c *Cache) { t.Helper(); must.Do(t, os.Chmod(c.path(k), 0o622)) }, "others may have written it", false},
		"too large":               {func(t *testing.T, c *Cache) { t.Helper(); must.Do(t, os.Truncate(c.path(k), 1<<40)) }, "invalid character", false},
		"a pipe": {func(t *testing.T, c *Cache) {
			t.Helper()
			must.Do(t, errors.Join(os.Remove(c.path(k)), syscall.Mkfifo(c.path(k), 0o600)))
		}, "others may have written it", false},
		"a directory": {func(t *testing.T, c *Cache) {
			t.Helper()
			must.Do(t, errors.Join(os.Remove(c.path(k)), os.Mkdir(c.path(k), 0o700)))
		}, "others may have written it", false},
		"a link": {func(t *testing.T, c *Cache) {
			t.Helper()
			must.Do(t, errors.Join(os.Rename(c.path(k), c.path("x")), os.Symlink("x.json", c.path(k))))
		}, "too many levels", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := &Cache{t.TempDir()}
			must.Do(t, c.Put(k, outcome(t, good), now))
			tt.breaks(t, c)
			got, err := c.Get(k, now)
			if got != nil {
				t.Errorf("got %+v", got)
			}
			must.Err(t, err, tt.err)
			err = c.Put(k, outcome(t, bad), now)
			if tt.stays {
				must.Err(t, err, "another version")
				must.Do(t, c.Forget(k))
				err = c.Put(k, outcome(t, bad), now)
			}
			must.Do(t, err)
			if got, err := c.Get(k, now); err != nil || got == nil || got.Verdict != submit.NotPassed {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
	c := &Cache{filepath.Join(must.Write(t, t.TempDir(), "file", ""), "results")}
	must.Err(t, c.Put(k, outcome(t, good), now), "not a directory")
	if _, err := c.Get(k, now); err == nil {
		t.Error("a directory that cannot be is read")
	}
}

// TestPrune keeps the newest of too many, removes what is no answer any more and what a writer that was killed left, and
// leaves alone what is not the cache's.
func TestPrune(t *testing.T) {
	t.Parallel()
	c := &Cache{t.TempDir()}
	file := func(name string, size int64, age time.Duration) {
		path := must.Write(t, c.dir, name, "")
		must.Do(t, errors.Join(os.Truncate(path, size), os.Chtimes(path, now.Add(-age), now.Add(-age))))
	}
	left := func() string {
		var names []string
		files, err := os.ReadDir(c.dir)
		must.Do(t, err)
		for _, f := range files {
			names = append(names, f.Name())
		}
		return strings.Join(names, " ")
	}
	file("a.json", 1, time.Hour)
	file("b.json", maxBytes-2, 2*time.Hour)
	file("c.json", 2, 3*time.Hour)
	file("d.json", 0, Kept+time.Minute)
	file("e.json", 0, -Kept-time.Minute)
	file(".part1", 1<<40, 2*time.Hour)
	file(".part2", 1<<40, time.Minute)
	file("notes.txt", 1<<40, 10*Kept)
	must.Do(t, os.Mkdir(filepath.Join(c.dir, "f.json"), 0o700))
	must.Do(t, c.prune(now))
	must.Equal(t, ".part2 a.json b.json f.json notes.txt", left())

	c.dir = must.MemoryDir(t)
	for i := range maxEntries + 3 {
		file(fmt.Sprintf("%04d.json", i), 1, time.Duration(i)*time.Second)
	}
	must.Do(t, c.prune(now))
	names := strings.Fields(left())
	if len(names) != maxEntries || names[0] != "0000.json" || names[len(names)-1] != fmt.Sprintf("%04d.json", maxEntries-1) {
		t.Errorf("%d are left: %s to %s", len(names), names[0], names[len(names)-1])
	}
}

// TestWriters has many write and read the same result at once: what is read is always whole.
func TestWriters(t *testing.T) {
	t.Parallel()
	c := &Cache{must.MemoryDir(t)}
	k := keyOf(t, request())
	outcomes := []submit.Outcome{outcome(t, good), outcome(t, bad)}
	must.Do(t, c.Put(k, outcomes[0], now))
	var all sync.WaitGroup
	for i := range 4 {
		all.Go(func() {
			for range 10 {
				if err := c.Put(k, outcomes[i%2], now); err != nil {
					t.Error(err)
				}
				if got, err := c.Get(k, now); err != nil || got == nil {
					t.Errorf("%+v, %v", got, err)
				}
			}
		})
	}
	all.Wait()
}

// FuzzRead reads any file: what it takes for an answer is complete.
func FuzzRead(f *testing.F) {
	r := request()
	kind, _ := kindOf(tags)
	k, _ := KeyOf(at, r, kind)
	whole, _ := json.Marshal(entry{WrittenBy: "kbnode", Schema: schema, Key: k, Stored: now, Outcome: submit.Outcome{Verdict: submit.Passed, State: "passed", Exit: new(int)}, Result: []byte(good)})
	f.Add(whole)
	f.Add([]byte(`{"schema":1,"key":"` + string(k) + `","stored":"2026-03-01T12:00:00Z","outcome":null,"result_json":null}`))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, content []byte) {
		c := &Cache{dir}
		must.Do(t, os.WriteFile(c.path(k), content, 0o600))
		if out, err := c.Get(k, now); err == nil && out != nil && (out.Result == nil || complete(*out) != nil || out.Cached.IsZero()) {
			t.Errorf("%s: %+v", content, out)
		}
	})
}
