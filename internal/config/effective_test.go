package config

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestHide(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		DefaultEndpoint:                          DefaultEndpoint,
		"https://me:pw@h/a-{version}.tgz":        "https://xxxxx@h/a-{version}.tgz",
		"https://TOKEN@h/a":                      "https://xxxxx@h/a",
		"https://me:p/w@h@h/a":                   "https://xxxxx@h/a",
		"https://h/a.tgz?X-Signature=ab&b=c#d":   "https://h/a.tgz?xxxxx",
		"https://h/a.tgz#secret":                 "https://h/a.tgz#xxxxx",
		"me:pw@h":                                "xxxxx@h",
		"https://agent-{arch}.example/{version}": "https://agent-{arch}.example/{version}",
	} {
		if got := hideURL(in); got != want {
			t.Errorf("URL %s is shown as %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{
		`^https://me:p@w@github\.com/x$`:    `^https://xxxxx@github\.com/x$`,
		`^https?:\/\/TOKEN@github\.com/x$`:  `^https?:\/\/xxxxx@github\.com/x$`,
		`^(a|ssh://git@github\.com/)x$`:     `^(a|ssh://git@github\.com/)x$`,
		`^https://[^@/]+@github\.com/x$`:    `^https://[^@/]+@github\.com/x$`,
		`^(https|ssh)://me:pw@github\.com$`: `^(https|ssh)://xxxxx@github\.com$`,
	} {
		if got := hidePattern(in); got != want {
			t.Errorf("pattern %s is shown as %s, want %s", in, got, want)
		}
	}
	if _, some := hide("agent.allowed_repositories", DefaultRepositories); some {
		t.Error("something of the default is hidden")
	}
}

func TestDecidedAreTheKeysWithoutADefault(t *testing.T) {
	t.Parallel()
	var want []string
	eachKey(reflect.ValueOf(Config{}.WithDefaults()), "", func(key string, v reflect.Value) {
		if v.IsZero() && v.Kind() != reflect.Bool {
			want = append(want, key)
		}
	})
	slices.Sort(want)
	must.Equal(t, want, slices.Sorted(maps.Keys(decided)))
	// The page must describe them in the same way.
	page := must.Read(t, "../../docs/configuration.md")
	for key, words := range decided {
		row := regexp.MustCompile("(?m)^\\| `" + key + "` \\|([^|]*)\\|").FindStringSubmatch(page)
		if row == nil || !strings.Contains(strings.ReplaceAll(row[1], "`", ""), words) {
			t.Errorf("%s: docs/configuration.md does not say %q: %q", key, words, row)
		}
	}
}

func TestEffective(t *testing.T) {
	t.Parallel()
	f, err := Read("f", []byte("queue: a\nnode: box\ngpus: [1, GPU-1f]\nreserve: {cpus: 0}\njob: {tasks_max: 0}\nhygiene: {disabled: false}\nagent:\n  allowed_repositories: []\n  endpoint: https://me:pw@h/v3\n  binary:\n"))
	must.Do(t, err)
	list, err := Effective(f, Config{Node: "over", CPUsPerSlot: 4})
	must.Do(t, err)
	got := map[string]Setting{}
	for _, s := range list {
		got[s.Key] = s
	}
	for _, want := range []Setting{
		{Key: "queue", Value: "a", Origin: FromFile},
		{Key: "node", Value: "over", Origin: FromEnvironment, Note: "NODE_NAME"},
		{Key: "gpus", Value: []any{1, "GPU-1f"}, Origin: FromFile},
		{Key: "cpus_per_slot", Value: 4, Origin: FromEnvironment, Note: "CPUS_PER_GPU"},
		{Key: "reserve.cpus", Value: 0, Origin: FromFile},
		{Key: "agent.endpoint", Value: "https://xxxxx@h/v3", Origin: FromFile, Hidden: true},
		{Key: "agent.binary", Origin: FromDefault, Note: "the installed one"},
		{Key: "docker.socket", Value: DefaultDockerSocket, Origin: FromDefault},
		{Key: "job.tasks_max", Value: DefaultTasksMax, Origin: FromDefault},
		{Key: "agent.allowed_repositories", Value: []any{}, Origin: FromFile},
		{Key: "hygiene.disabled", Value: false, Origin: FromFile},
		{Key: "job.cpu_quota", Value: false, Origin: FromDefault},
	} {
		if diff := cmp.Diff(want, got[want.Key]); diff != "" {
			t.Errorf("%s: %s", want.Key, diff)
		}
	}
}

// TestTextIsReadBack checks that the text shown is a file with the same meaning.
func TestTextIsReadBack(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":    "{}\n",
		"strict":     "job: {profile: strict}\n",
		"words":      "node: '123'\nhygiene: {clocks: 1410}\nimage: {auto_update: off}\nagent: {tags: ['a=#b'], binary: \"/a\\nb: 'c #\"}\n",
		"every kind": "gpus: [0000:1a:00.0, 3]\nmemory_per_slot: 1.5GiB\njob: {cpu_quota: true, disk: 100000000000B, allowed_images: ['^a: b$']}\n",
	} {
		f, err := Read(name, []byte(text))
		must.Do(t, err)
		list, err := Effective(f, Config{})
		must.Do(t, err)
		shown, err := Text(list)
		must.Do(t, err)
		again, err := Parse("shown", []byte(shown))
		if err != nil {
			t.Fatalf("%s: %v in\n%s", name, err, shown)
		}
		want := f.Config.WithDefaults()
		if want.GPUs.IsZero() {
			want.GPUs.All = true
		}
		if diff := cmp.Diff(want, again); diff != "" {
			t.Errorf("%s: %s\n%s", name, diff, shown)
		}
		for _, s := range list {
			_, key, _ := strings.Cut("."+s.Key, ".")
			if key = key[strings.LastIndex(key, ".")+1:]; !strings.Contains(shown, key+":") {
				t.Errorf("%s: %s is not shown", name, s.Key)
			}
		}
	}
}
