// Package support writes support archives: what doctor found and read, without secrets.
package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/plan"
)

const (
	// maxPart limits one file of an archive, in bytes. Of a longer file, the end is kept.
	maxPart   = 2 << 20
	maxSecret = 16 << 10
	// partTime limits the query of one program.
	partTime = 20 * time.Second
)

// Part is one file of an archive.
type Part struct {
	Name string
	Text func(ctx context.Context) ([]byte, error)
}

// Value returns a part that contains the JSON of a value.
func Value(name string, value func() any) Part {
	return Part{name, func(context.Context) ([]byte, error) { return json.MarshalIndent(value(), "", "  ") }}
}

// parts returns what every archive contains besides the caller's parts.
func parts(m *doctor.Machine) []Part {
	all := []Part{
		Value("inventory.json", func() any { return m.Inventory }),
		Value("plan.json", func() any { return m.Plan }),
		Value("state.json", func() any { return m.State }),
		Value("changes.json", func() any { return m.Changes }),
	}
	for _, name := range []string{
		plan.ConfigPath, plan.BindingsPath, plan.LastPath, plan.DrainsPath, plan.AgentsPath, "/var/lib/kbnode/health.json", "/var/lib/kbnode/events.jsonl",
		"/etc/docker/daemon.json", "/etc/os-release", "/proc/cmdline", "/proc/meminfo", "/proc/mounts", "/proc/modules",
	} {
		all = append(all, Part{"files" + name, func(context.Context) ([]byte, error) {
			text, err := m.Read(name)
			if errors.Is(err, fs.ErrNotExist) {
				err = nil
			}
			return []byte(text), err
		}})
	}
	for name, args := range map[string][]string{
		"journal/kbnode.txt": {"journalctl", "--no-pager", "-o", "short-iso", "-n", "5000", "-u", ownUnits[0], "-u", ownUnits[1], "-u", ownUnits[2]},
		"journal/agents.txt": {"journalctl", "--no-pager", "-o", "short-iso", "-n", "5000", "-u", "buildkite-agent-gpu*"},
		"journal/docker.txt": {"journalctl", "--no-pager", "-o", "short-iso", "-n", "1000", "-u", "docker", "-u", "containerd"},
		"journal/kernel.txt": {"journalctl", "--no-pager", "-o", "short-iso", "-k", "-b", "-n", "5000"},
		"units.txt":          {"systemctl", "--no-pager", "list-units", "--all", "kbnode*", "buildkite*", "docker*", "containerd*", "nvidia*"},
	} {
		all = append(all, Part{name, func(ctx context.Context) ([]byte, error) { return printed(ctx, args...) }})
	}
	return all
}

// ownUnits are kbnode's own units, as patterns, without those of the site's hooks, which may print secrets.
var ownUnits = [3]string{plan.NodeService, "kbnode-i*", "kbnode-job-*"}

func printed(ctx context.Context, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, partTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"}
	cmd.WaitDelay = time.Second
	return cmd.CombinedOutput()
}

// Write writes a support archive (tar, gzip): the report, what was read for it, kbnode's
// own files, and what the journal has about kbnode, agents, Docker and the kernel. It
// removes secrets. A part that cannot be read completely ends with the error.
func Write(ctx context.Context, w io.Writer, m *doctor.Machine, r *doctor.Report, more ...Part) error {
	all := append([]Part{Value("doctor.json", func() any { return r })}, more...)
	all = append(all, parts(m)...)
	texts := make([][]byte, len(all))
	var group sync.WaitGroup
	for i, p := range all {
		group.Go(func() {
			text, err := p.Text(ctx)
			if err != nil {
				text = append(text, fmt.Sprintf("\nincomplete: %v\n", err)...)
			}
			texts[i] = text
		})
	}
	group.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	hide := newScrubber(m)
	zip := gzip.NewWriter(w)
	archive := tar.NewWriter(zip)
	for i, p := range all {
		// The cut must not leave half a secret, which no pattern recognizes.
		text := tail(hide.clean(tail(texts[i], maxPart+maxSecret)), maxPart)
		header := &tar.Header{Name: "kbnode-doctor/" + p.Name, Mode: 0o600, Size: int64(len(text)), ModTime: m.Now}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write support archive: %w", err)
		}
		if _, err := archive.Write(text); err != nil {
			return fmt.Errorf("write support archive: %w", err)
		}
	}
	if err := errors.Join(archive.Close(), zip.Close()); err != nil {
		return fmt.Errorf("write support archive: %w", err)
	}
	return nil
}

func tail(text []byte, n int) []byte { return text[max(0, len(text)-n):] }

// hidden replaces secrets.
const hidden = "(hidden)"

// longChar matches a character of a token (RFC 6750).
const longChar = `[0-9A-Za-z._~+/=-]`

// secretForms match what looks like a secret anywhere in a text. The groups of each are kept.
var secretForms = sync.OnceValue(func() []*regexp.Regexp {
	var all []*regexp.Regexp
	for _, form := range []string{
		// The tokens of Buildkite, GitHub, GitLab, Docker Hub and Vault. After its prefix, one may be a JSON web token.
		`()\b(?:bk[a-z]{2,3}_|gh[a-z]_|github_pat_|gl(?:pat|dt)-|dckr_[a-z]{3}_|hv[bs]\.)` + longChar + `{16,}`,
		`()\bhf_[0-9A-Za-z]{30,}`,                          // Hugging Face's
		`()eyJ[0-9A-Za-z_-]{10,}(?:\.[0-9A-Za-z_-]*){2,4}`, // JSON web tokens
		`(?i)([a-z0-9_.-]*(?:token|secret(?:[-_]access[-_]key|[-_]key)?|passw(?:or)?d|passphrase|(?:api|private)[-_]?key|credential)s?\\*["']?\s*[=:]\s*)` +
			// in quotes that a quoted text has; in quotes; in others; without
			`(?:(\\+")[^"\\\n]{4,}|(")(?:\\.|[^"\\\n]){4,}|(')[^'\n]{4,}|[^\s"'\\][^\s"\\]{2,}[^\s"'\\])`,
		`(?i)(--?(?:token|password|secret|(?:api|private)[-_]?key)\s+)[^\s"']{4,}`,
		`(?i)((?:authorization|proxy-authorization)["']?\s*[=:]\s*["']?(?:\w+ )?)[^\s"',;}]{4,}`,
		`(?i)(\bbearer\s+)` + longChar + `{16,}`,
		`(?i)("auth"\s*:\s*")[^"]+`,
		`(?i)([a-z][a-z0-9+.-]*://)[^/\s"']+@`,
		// the login of a proxy, which needs no scheme
		`(?i)(proxy\\*["']?(?:\s*[=:]\s*| +)\\*["']?)[^\s"'<>]+@`,
		`(?i)([a-z][a-z0-9+.-]*://[^\s"'<>?]+\?)[^\s"'<>]*[^\s"'<>\\]`, // signed addresses
		`()-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`,
	} {
		all = append(all, regexp.MustCompile(form))
	}
	return all
})

// scrubber removes secrets from text.
type scrubber struct{ known []string }

// address finds the addresses in a configuration, even one with errors.
var address = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`https?://[^\s"]+`) })

// newScrubber knows this machine's own token and webhook, whatever their form.
func newScrubber(m *doctor.Machine) scrubber {
	var s scrubber
	config, _ := m.Read(plan.ConfigPath)              // if it cannot be read, it is not in the archive either
	if i := strings.Index(config, "notify"); i >= 0 { // those after it: YAML has many forms for notify.url
		s.known = address().FindAllString(config[i:], -1)
	}
	if m.Config != nil && !strings.HasPrefix(m.Config.Notify.URL, "/") && m.Config.Notify.URL != "" {
		s.known = append(s.known, m.Config.Notify.URL)
	}
	if m.API.Token != "" {
		s.known = append(s.known, m.API.Token)
	}
	text, err := m.Read(plan.TokenPath)
	if err != nil {
		return s
	}
	for line := range strings.Lines(text) {
		_, value, named := strings.Cut(strings.TrimSpace(line), "=")
		if !named {
			value = strings.TrimSpace(line)
		}
		value = strings.Trim(value, `"'`)
		if len(value) > 7 {
			s.known = append(s.known, value)
		}
	}
	return s
}

func (s scrubber) clean(text []byte) []byte {
	for _, secret := range s.known {
		text = bytes.ReplaceAll(text, []byte(secret), []byte(hidden))
	}
	for _, form := range secretForms() {
		text = form.ReplaceAll(text, []byte("${1}${2}${3}${4}"+hidden))
	}
	return text
}

// Create creates the file for an archive, which only root may read. The file must not
// exist, so that a link in a directory that others can write to is not followed.
func Create(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s already exists; choose another name", name)
	}
	return f, err
}
