package checkout

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/gpu-mode/kbnode/internal/text"
)

// faults of a repository or its server, by what git says (LC_ALL=C), and what to do. What is not here,
// such as a network that fails, is the node's fault, and the job may be tried again.
var faults = []struct {
	texts []string
	why   string // "" has a sentence of its own
}{
	{[]string{"couldn't find remote ref", "not our ref", "no such remote ref", "unadvertised object"}, ""},
	{movedWords, ""},
	{[]string{"could not read Username", "could not read Password", "Authentication failed", "terminal prompts disabled", "' not found"},
		"the repository is private or does not exist; kbnode fetches public repositories only"},
	{[]string{"returned error: 410", "returned error: 451"}, "the server has withdrawn the repository; use another one"},
	{[]string{"mismatched algorithms", "unknown object format", "unsupported object format"}, "the repository has another object format than SHA-1; convert it"},
	{[]string{"not valid: is this a git repository", "dumb http transport"}, "the address is not that of a repository on a Git server; write the one that git clone takes"},
	{[]string{"Out of memory", "out of memory", "Cannot allocate memory"}, "a file of the commit, or their number, is too large for git; keep large files elsewhere"},
	{[]string{"fsck error", "inflate", "pack has bad object", "pack signature mismatch", "unresolved deltas", "COLLISION", "did not send all necessary objects", "did not receive expected object", "bad object", "unknown object type", "pack is corrupted", "pack version", ", not a ", remote + "aborting due to possible repository corruption"},
		"the repository is damaged; run git fsck in it and push it again"},
	{[]string{"died of signal 11", "segmentation fault", "maximum allowed tree depth"}, "git cannot read the repository; its trees may be too deep"},
}

var movedWords = []string{"returned error: 301", "returned error: 302", "returned error: 303", "returned error: 307", "returned error: 308"}

// remote begins what a server says.
const remote = "remote: "

// matches reports whether git itself says one of the texts.
func (e *gitError) matches(texts []string) bool {
	for line := range strings.Lines(e.stderr + "\n" + e.err.Error()) {
		for _, t := range texts {
			// A server's own words can be anything.
			if strings.Contains(line, t) && strings.HasPrefix(line, remote) == strings.HasPrefix(t, remote) {
				return true
			}
		}
	}
	return false
}

func notFound(repository, commit string) error {
	return refuse("%.200s has no commit, branch or tag %.80q; push it, or start the build at another one", repository, commit)
}

// explain turns a failed command's error into a *RefusedError if another try would fail, too.
func (m Mirrors) explain(ctx context.Context, err error, repository, commit string) error {
	failed, ok := errors.AsType[*gitError](err)
	if !ok || ctx.Err() != nil {
		return fmt.Errorf("fetch %s: %w", repository, err)
	}
	for i, f := range faults {
		switch {
		case !failed.matches(f.texts):
			continue
		case i == 0:
			return notFound(repository, commit)
		case f.why == "":
			return m.moved(ctx, repository)
		}
		return refuse("fetch %.200s: %s (git: %s)", repository, f.why, text.Line(strings.TrimSpace(failed.stderr), 300))
	}
	return fmt.Errorf("fetch %s: %w", repository, err)
}

var (
	locationForm = regexp.MustCompile(`(?im)<= Recv header: location: *(\S{1,500})\s*$`)
	addressForm  = regexp.MustCompile(`^https://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?(/[A-Za-z0-9._-]+)+$`)
)

// moved says where a repository has moved, which git does not. It is not fetched from there: only the
// address of the build is known to be allowed.
func (m Mirrors) moved(ctx context.Context, repository string) error {
	cmd := m.command(ctx, m.Dir, "ls-remote", "--quiet", "--", repository, "HEAD")
	cmd.Env = append(cmd.Env, "GIT_TRACE_CURL=1", "GIT_TRACE_CURL_NO_DATA=1")
	var to string
	if err := start(cmd, maxOutput); err == nil {
		if failed, ok := errors.AsType[*gitError](wait(ctx, cmd)); ok {
			if found := locationForm.FindStringSubmatch(failed.stderr); found != nil {
				to, _, _ = strings.Cut(found[1], "/info/refs?")
			}
		}
	}
	if !addressForm.MatchString(to) {
		return refuse("%.200s has moved; write its new URL into the pipeline's settings", repository)
	}
	return refuse("%.200s has moved to %s; write that URL into the pipeline's settings", repository, to)
}
