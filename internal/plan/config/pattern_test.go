package config

import (
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestMeantPattern checks what is advised in place of a name or a shell's pattern: it matches what was meant, and
// stays as it is when it is typed.
func TestMeantPattern(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]struct{ pattern, allows, refuses string }{
		"ghcr.io/gpu-mode/*":                {`^ghcr\.io/gpu-mode/.*$`, "ghcr.io/gpu-mode/kernelbot:latest", "ghcrxio/gpu-mode/kernelbot:latest"},
		"^ghcr.io/gpu-mode/*$":              {`^ghcr\.io/gpu-mode/.*$`, "ghcr.io/gpu-mode/kernelbot:latest", "ghcr.io/gpu-mode"},
		"ghcr.io/gpu-mode/kernelbot:v1.2.3": {`^ghcr\.io/gpu-mode/kernelbot:v1\.2\.3$`, "ghcr.io/gpu-mode/kernelbot:v1.2.3", "ghcr.io/gpu-mode/kernelbot:v1x2.3"},
		"https://github.com/me/**":          {`^https://github\.com/me/.*$`, "https://github.com/me/a/b", "https://github-com/me/a"},
		"*/kernelbot*":                      {`^.*/kernelbot.*$`, "reg.example/kernelbot:1", "reg.example/other:1"},
		"*":                                 {`^.*$`, "a", ""},
		`^ghcr\.io/[a-z.]*/\w*:[0-9.]+$`:    {`^ghcr\.io/[a-z.]*/\w*:[0-9.]+$`, "ghcr.io/a.b/c:1.2", "ghcr.io/a/b/c:1"},
		`^ghcr\.io/[[:alnum:]]*$`:           {`^ghcr\.io/[[:alnum:]]*$`, "ghcr.io/a1", "ghcr.io/a/b"},
		`^ghcr\.io/[^]/]*$`:                 {`^ghcr\.io/[^]/]*$`, "ghcr.io/a", "ghcr.io/a/b"},
		`^\pL*/\p{Greek}*$`:                 {`^\pL*/\p{Greek}*$`, "a/α", "1/α"},
		`^(a|b\*)*x.*$`:                     {`^(a|b\*)*x.*$`, "ab*xy", "abxy"},
	} {
		got := meantPattern(in)
		must.Equal(t, want.pattern, got)
		must.Equal(t, want.pattern, meantPattern(got))
		re := regexp.MustCompile(got)
		if !re.MatchString(want.allows) || want.refuses != "" && re.MatchString(want.refuses) {
			t.Errorf("%s is no good in place of %s", got, in)
		}
	}
}

// TestWarnings checks what is valid but does not do what it seems to.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`job: {allowed_images: ['^ghcr\.io/a/.*$']}`:                  "",
		"job: {allowed_images: ['^ghcr.io/a$']}":                      `job.allowed_images: in "^ghcr.io/a$", a dot is any character, and a * repeats what is before it; write '^ghcr\.io/a$'`,
		"agent: {allowed_repositories: ['^https://u:p@h/a/*$']}":      `agent.allowed_repositories: in "^https://xxxxx@h/a/*$", a dot is any character`,
		"job: {allowed_networks: [10.0.0.0/8]}":                       "job.allowed_networks has no effect without job.network: internet",
		"job: {allowed_networks: [10.0.0.0/8], network: none}":        "job.allowed_networks has no effect without job.network: internet",
		"notify: {url: 'https://hooks.example/services/T/B/secret'}":  "notify.url: everyone on the node can read the file",
		"notify: {url: 'https://alerts.example'}":                     "",
		"notify: {url: /etc/kbnode/notify-url, command: [/bin/true]}": "",
	} {
		report, err := CheckFile("f", []byte("queue: b200\n"+text+"\n"))
		must.Do(t, err)
		if said := strings.Join(report.Warnings, "\n"); (said == "") != (want == "") || !strings.HasPrefix(said, want) {
			t.Errorf("%s: %q", text, said)
		}
	}
	must.Equal(t, 0, len(Config{}.WithDefaults().PatternWarnings()))
}
