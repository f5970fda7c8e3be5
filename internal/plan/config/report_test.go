package config

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/std/yamlfile"
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
		if got := HideURL(in); got != want {
			t.Errorf("URL %s is shown as %s, want %s", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"https://hooks.example/services/T0/B0/xyz": "https://hooks.example/xxxxx",
		"https://hooks.example?key=xyz":            "https://hooks.example?xxxxx",
		"https://me:pw@hooks.example/":             "https://xxxxx@hooks.example/",
		"https://me:p/w@hooks.example/x":           "https://xxxxx@hooks.example/xxxxx",
		"hooks.example/services/xyz":               "hooks.example/xxxxx",
		"/etc/kbnode/notify-url":                   "/etc/kbnode/notify-url",
	} {
		if got := HideWebhook(in); got != want {
			t.Errorf("webhook %s is shown as %s, want %s", in, got, want)
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

// TestShow checks that what is shown is a file with the same meaning, without secrets.
func TestShow(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":    "{}\n",
		"strict":     "job: {profile: strict}\nreserve: {cpus: 0}\nagent: {allowed_repositories: []}\n",
		"words":      "node: '123'\nhygiene: {clocks: 1410}\nimage: {auto_update: off}\nagent: {tags: ['a=#b'], binary: \"/a\\nb: 'c #\"}\n",
		"every kind": "gpus: [0000:1a:00.0, 3]\nmemory_per_slot: 1.5GiB\njob: {cpu_quota: true, disk: 100000000000B, allowed_images: ['^a: b$']}\n",
		"a count":    "gpu_count: 2\n",
		"no GPU":     "queue: cpu\ngpus: none\nslots: 4\n",
	} {
		c, err := Parse(name, []byte(text))
		must.Do(t, err)
		c = c.WithDefaults()
		shown, err := Show("/f", c)
		must.Do(t, err)
		if c.GPUCount == 0 && c.GPUs.IsZero() {
			c.GPUs.All = true
		}
		again, err := Parse("shown", []byte(shown.Text))
		must.Do(t, err)
		must.Equal(t, c, again)
		if len(shown.Hidden) > 0 || !strings.HasPrefix(shown.Text, "# The configuration of this node. File: /f\n") {
			t.Errorf("%s: %q is hidden in\n%s", name, shown.Hidden, shown.Text)
		}
	}
	secrets := Config{Agent: Agent{Endpoint: "https://me:pw@h/v3", AllowedRepositories: Patterns{"^https://TOKEN@h/p$"}}, Notify: Notify{URL: "https://h/SECRET"}}
	shown, err := Show("", secrets)
	must.Do(t, err)
	want := "# The configuration of this node. File: none\n# Secrets are shown as xxxxx: restore them before you use this file.\n" +
		"gpus: all\nagent:\n  endpoint: https://xxxxx@h/v3\n  allowed_repositories:\n    - ^https://xxxxx@h/p$\nnotify:\n  url: https://h/xxxxx\n"
	must.Equal(t, want, shown.Text)
	must.Equal(t, []string{"agent.endpoint", "agent.allowed_repositories", "notify.url"}, shown.Hidden)
	must.Equal(t, "https://me:pw@h/v3", secrets.Agent.Endpoint)
}

// TestCheckFile checks files that can be read, and that every machine refuses.
func TestCheckFile(t *testing.T) {
	t.Parallel()
	for text, line := range map[string]int{
		"queue: a\nslots: 4\n":                2,
		"slots: 4\nqueue: a\ngpus: all\n":     1,
		"queue: a\ngpus: 0-3\nslots: 4\n":     3,
		"gpu_count: 4\nqueue: a\nslots: 4\n":  3,
		"queue: a\ngpus: none\nslots: 4\n":    0,
		"queue: a\ngpu_count: 4\ngpus: 0-3\n": 0,
	} {
		report, err := CheckFile("f", []byte(text))
		want := ""
		if line > 0 {
			want = fmt.Sprintf("f:%d: slots: 4 is set, but the GPUs decide how many slots there are; also write gpus: none, or leave slots out", line)
		}
		must.Err(t, err, want)
		if report.OK != (line == 0) || len(report.Faults) != min(line, 1) {
			t.Errorf("%q: %+v", text, report)
		}
		if _, err := Parse("f", []byte(text)); err != nil {
			t.Errorf("%q cannot be read: %v", text, err)
		}
	}
}

func TestEveryFaultIsTold(t *testing.T) {
	t.Parallel()
	text := strings.Join([]string{
		"queues: b",                       // 1: unknown
		"queue: b200,h100",                // 2: bad value
		"reserve:",                        // 3
		"  mem: 1G",                       // 4: unknown
		"  cpus: 8.5",                     // 5: would be truncated
		`"a \e[2J": 1`,                    // 6: unknown, and clears a screen
		"job: {max_minutes: soon}",        // 7: wrong type
		"image: [a]",                      // 8: not a group
		"queue: x",                        // 9: twice
		"gpus: 0",                         // 10: bad value of a custom type
		"memory_per_slot: 8GB",            // 11: the same
		"hygiene: {clocks: {a: b, a: c}}", // 12: a group instead of a text
		`cpus_per_slot: !!int "a\e[2J"`,   // 13: the library quotes it as it is
		"agent: {tags: [[a]], endpoint: 'ftp://me:secret@h', binary: x}", // 14: three
	}, "\n")
	_, err := Read("f.yaml", []byte(text))
	faults, ok := err.(*yamlfile.Faults) //nolint:errorlint // exactly this type, not wrapped
	if !ok {
		t.Fatalf("error is %T: %v", err, err)
	}
	got := map[int]int{}
	for _, f := range faults.List {
		got[f.Line]++
	}
	want := map[int]int{1: 1, 2: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1, 9: 1, 10: 1, 11: 1, 12: 1, 13: 1, 14: 3}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("faults by line: %s\n%v", diff, err)
	}
	if strings.ContainsAny(err.Error(), "\x1b") || strings.Contains(err.Error(), "secret") {
		t.Errorf("the message clears a screen, or has a password in it: %q", err)
	}
}

// TestHostileFiles checks that files made to take long do not.
func TestHostileFiles(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"a key very often":          strings.Repeat("a: 1\n", maxBytes/5),
		"a known key very often":    strings.Repeat("queue: a\n", maxBytes/9),
		"a group in a text":         "queue: {" + strings.Repeat("a: 1, ", maxBytes/6-10) + "}",
		"groups in a list":          "agent: {tags: [{" + strings.Repeat("a: 1, ", maxBytes/6-10) + "}]}",
		"aliases of aliases":        "a: &a [x]\nb: &b [" + strings.Repeat("*a, ", 1000) + "]\nqueue: [" + strings.Repeat("*b, ", 1000) + "]",
		"too large":                 strings.Repeat("#", maxBytes+1),
		"a group that holds itself": "agent: &a {tags: *a, binary: *a}",
		"very deep":                 "queue: " + strings.Repeat("[", 9000),
	} {
		_, err := Read("f", []byte(text))
		if err == nil {
			t.Errorf("%s: is taken", name)
		} else if n := strings.Count(err.Error(), "\n"); n > shownMost {
			t.Errorf("%s: %d lines are said of it", name, n)
		}
	}
}

func TestSchedule(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"0 3 * * *":             "*-*-* 03:00:00",
		" 0   3 * * * ":         "*-*-* 03:00:00",
		"@daily":                "*-*-* 00:00:00",
		"@hourly":               "*-*-* *:00:00",
		"@weekly":               "Sun *-*-* 00:00:00",
		"@yearly":               "*-01-01 00:00:00",
		"*/15 * * * *":          "*-*-* *:00,15,30,45:00",
		"5 1-3,22 * * 1-5":      "Mon,Tue,Wed,Thu,Fri *-*-* 01,02,03,22:05:00",
		"0 0 * * 7":             "Sun *-*-* 00:00:00",
		"0 0 * * 0-7":           "*-*-* 00:00:00",
		"0 0 * * */2":           "Sun,Tue,Thu,Sat *-*-* 00:00:00",
		"0 0 * * sat,SUN":       "Sun,Sat *-*-* 00:00:00",
		"0 4 1,15 jan-mar *":    "*-01,02,03-01,15 04:00:00",
		"0-59 0-23 1-31 1-12 *": "*-*-* *:*:00",
		"10-40/10 2 * * *":      "*-*-* 02:10,20,30,40:00",
	} {
		s, err := ParseSchedule(in)
		if err != nil {
			t.Errorf("%q: %v", in, err)
			continue
		}
		got, err := s.Calendar()
		if got != want || err != nil {
			t.Errorf("%q: %q, %v; want %q", in, got, err, want)
		}
		if tool, err := exec.LookPath("systemd-analyze"); err == nil {
			if out, err := exec.CommandContext(t.Context(), tool, "calendar", got).CombinedOutput(); err != nil {
				t.Errorf("systemd does not understand %q: %s", got, out)
			}
		}
	}
	for in, want := range map[string]string{
		"":                   "has 0 fields",
		"0 3 * *":            "has 4 fields",
		"0 3 * * * root x":   "has 7 fields",
		"@reboot":            "has no time of day",
		"60 3 * * *":         `"60" cannot be the minute; write *, or numbers from 0 to 59`,
		"0 24 * * *":         "cannot be the hour",
		"0 3 0 * *":          "cannot be the day of the month",
		"0 3 * 13 *":         "cannot be the month",
		"0 3 * * 8":          "cannot be the day of the week",
		"0 3 * * *;id":       "cannot be the day of the week",
		"0 3-1 * * *":        "cannot be the hour",
		"0 3/2 * * *":        "cannot be the hour",
		"*/0 3 * * *":        "cannot be the minute",
		"*/99 3 * * *":       "cannot be the minute",
		"+1 3 * * *":         "cannot be the minute",
		"1,, 3 * * *":        "cannot be the minute",
		"0 3 * * mon-x":      "cannot be the day of the week",
		"0 3 % * *":          "cannot be the day of the month",
		"0\n3 * * * * * * *": "has 9 fields",
	} {
		if s, err := ParseSchedule(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want %q", in, s, err, want)
		}
	}
	s, err := ParseSchedule("0 3 1 * mon")
	must.Do(t, err)
	if got, err := s.Calendar(); err == nil || !strings.Contains(err.Error(), "set one of them") {
		t.Errorf("%q, %v; want a refusal", got, err)
	}
}
