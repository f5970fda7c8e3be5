package checkout

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// faults of a repository or its server, by what git says (LC_ALL=C), and what to do. What is not here,
// such as a network that fails, is the node's fault, and the job may be tried again.
var faults = []struct {
	texts []string
	why   string // "" has a sentence of its own
}{
	{[]string{"couldn't find remote ref", "not our ref", "no such remote ref", "unadvertised object"}, ""},
	{[]string{"returned error: 301", "returned error: 302", "returned error: 303", "returned error: 307", "returned error: 308"}, "it has moved; write its new URL into the pipeline's settings"},
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

// remote begins what a server says.
const remote = "remote: "

// matches reports whether git itself says one of the texts, besides the repository's name.
func (e *gitError) matches(repository string, texts []string) bool {
	said := strings.ReplaceAll(e.stderr, repository, "")
	for line := range strings.Lines(said + "\n" + e.err.Error()) {
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
	return refuse("%.200s has no commit, branch or tag %.80q; push it, or start the build at another one, a commit by all 40 digits of its hash", repository, commit)
}

// mirrorMayFail reports whether a fetch may have failed because the mirror is damaged: git names a damaged pack of
// its own as it names one of the server's.
func mirrorMayFail(ctx context.Context, err error, repository string) bool {
	failed, ok := errors.AsType[*gitError](err)
	if !ok || ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	unreached := "to access '" // what follows is of the network, or the server's answer
	return !failed.matches(repository, append([]string{unreached}, faults[0].texts...))
}

// explain turns a failed command's error into a *RefusedError if another try would fail, too.
func explain(ctx context.Context, err error, repository, commit string) error {
	failed, ok := errors.AsType[*gitError](err)
	if !ok || ctx.Err() != nil {
		return fmt.Errorf("fetch %s: %w", repository, err)
	}
	for i, f := range faults {
		if !failed.matches(repository, f.texts) {
			continue
		}
		if i == 0 {
			return notFound(repository, commit)
		}
		return refuse("fetch %.200s: %s (git: %s)", repository, f.why, text.Line(strings.TrimSpace(failed.stderr), 300))
	}
	return fmt.Errorf("fetch %s: %w", repository, err)
}
