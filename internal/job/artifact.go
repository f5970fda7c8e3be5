package job

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// maxAlternatives bounds how many paths the braces of one artifact path expand to.
const maxAlternatives = 256

// artifactClass is a set of characters that matches no dot and no slash.
var artifactClass = lazy.Regexp(`\[[!^]?([A-Za-z0-9_]|[A-Z]-[A-Z]|[a-z]-[a-z]|[0-9]-[0-9])+\]`)

// artifactPattern returns why an artifact path, which is a pattern, may lead out of the
// checkout; "" if it cannot. The agent's pattern libraries take a backslash for an escape
// and a part like $NAME for a variable, so \.\./x and $NAME/x lead out as well.
func artifactPattern(p string) string {
	plain := artifactClass().ReplaceAllString(p, "x")
	if i := strings.IndexAny(plain, "\\$!()[]`\"'"); i >= 0 {
		return fmt.Sprintf("contains %q; write paths with only * ? and {a,b}", plain[i])
	}
	if strings.HasPrefix(p, "-") {
		return "is an option of buildkite-agent; write ./ before it"
	}
	paths, ok := expandBraces(plain)
	if !ok {
		return fmt.Sprintf("has braces that do not match or that expand to more than %d paths; write them one by one", maxAlternatives)
	}
	for _, p := range paths {
		if path.IsAbs(p) || strings.HasPrefix(p, "~") || slices.Contains(strings.Split(p, "/"), "..") {
			return "is not in the checkout; write paths relative to it"
		}
	}
	return ""
}

// expandBraces expands a pattern to one path for each alternative, the innermost first:
// {,x}/y is also /y. ok is false if braces do not match or there are more than
// maxAlternatives.
func expandBraces(p string) (paths []string, ok bool) {
	todo := []string{p}
	for steps := 0; len(todo) > 0; steps++ {
		if len(todo)+len(paths) > maxAlternatives || steps > 4*maxAlternatives {
			return nil, false
		}
		p, todo = todo[0], todo[1:]
		at := strings.LastIndexByte(p, '{')
		if at < 0 {
			if strings.Contains(p, "}") {
				return nil, false
			}
			paths = append(paths, p)
			continue
		}
		inner, tail, found := strings.Cut(p[at+1:], "}")
		if !found {
			return nil, false
		}
		for alternative := range strings.SplitSeq(inner, ",") {
			todo = append(todo, p[:at]+alternative+tail)
		}
	}
	return paths, true
}
