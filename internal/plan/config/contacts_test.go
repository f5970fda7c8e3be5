package config

import (
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestContacts(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Config{
		"node: n1\nnotify: {url: /etc/url}\nunknown: 1\n":          {Node: "n1", Notify: Notify{URL: "/etc/url"}},
		"metrics:\n  listen: 127.0.0.1:9700\nqueue: [1\n":          {}, // no YAML at all
		"metrics:\n  listen: 127.0.0.1:9700\ncpus_per_slot: -1\n":  {Metrics: Metrics{Listen: "127.0.0.1:9700"}},
		"a: &a {url: /etc/url}\nnotify: *a\n":                      {}, // what it repeats is not looked at
		"notify: {url: http://hooks.example/secret}\nunknown: 1\n": {},
		"notify: {url: /etc/url}\nmetrics: {unknown: 1}\n":         {},
		"node: n1\nnotfy: {url: /etc/url}\n":                       {},
		"":                                                         {},
		"- 1\n":                                                    {},
		"notify: {command: [/bin/page, x]}\nhealth: {xids: 3}\njob: 1\n\"\\u001b[2J\": \"x\"\n": {Notify: Notify{Command: []string{"/bin/page", "x"}}},
	} {
		got, ok := Contacts("config.yaml", []byte(text))
		if !ok {
			got = Config{}
		}
		t.Log(text)
		must.Equal(t, want, got)
		must.Equal(t, want.Notify.URL != "" || want.Notify.Command != nil || want.Metrics.Listen != "", ok)
	}
}
