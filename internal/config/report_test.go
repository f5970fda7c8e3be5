package config

import (
	"strings"
	"testing"

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

// TestShow checks that what is shown is a file with the same meaning, without secrets.
func TestShow(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"nothing":    "{}\n",
		"strict":     "job: {profile: strict}\nreserve: {cpus: 0}\nagent: {allowed_repositories: []}\n",
		"words":      "node: '123'\nhygiene: {clocks: 1410}\nimage: {auto_update: off}\nagent: {tags: ['a=#b'], binary: \"/a\\nb: 'c #\"}\n",
		"every kind": "gpus: [0000:1a:00.0, 3]\nmemory_per_slot: 1.5GiB\njob: {cpu_quota: true, disk: 100000000000B, allowed_images: ['^a: b$']}\n",
		"a count":    "gpu_count: 2\n",
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
	secrets := Config{Agent: Agent{Endpoint: "https://me:pw@h/v3", AllowedRepositories: Patterns{"^https://TOKEN@h/p$"}}}
	shown, err := Show("", secrets)
	must.Do(t, err)
	want := "# The configuration of this node. File: none\n# Secrets are shown as xxxxx: restore them before you use this file.\n" +
		"gpus: all\nagent:\n  endpoint: https://xxxxx@h/v3\n  allowed_repositories:\n    - ^https://xxxxx@h/p$\n"
	must.Equal(t, want, shown.Text)
	must.Equal(t, []string{"agent.endpoint", "agent.allowed_repositories"}, shown.Hidden)
	must.Equal(t, "https://me:pw@h/v3", secrets.Agent.Endpoint)
}
