package config

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// validatePatterns checks a list of regular expressions.
func validatePatterns(key string, list Patterns, bad func(key, format string, args ...any)) {
	for _, re := range list {
		shown := hidePattern(re)
		_, err := regexp.Compile(re)
		meant := meantPattern(shown)
		_, other := regexp.Compile(meant)
		switch {
		case err != nil && other == nil:
			bad(key, "%q is not a regular expression; write '%s'", shown, meant)
		case err != nil:
			bad(key, "%q is not a regular expression; write one such as ^name-[a-z]+$: %v", shown, hidePattern(err.Error()))
		case !strings.HasPrefix(re, "^") || !strings.HasSuffix(re, "$"):
			bad(key, "%q matches anywhere in a name; write '%s'", shown, meant)
		}
	}
}

var (
	// patternParts are the characters of a regular expression: one after a backslash, a class of them, or one.
	patternParts = lazy.Regexp(`\\[pP]\{[^}]*\}|\\[pP].|\\.|\[\^?\]?(?:\[:\^?[a-z]+:\]|[^\]])*\]|(?s:.)`)
	ofName       = lazy.Regexp(`^[A-Za-z0-9]$`)
)

// meantPattern returns the pattern of whole names that people mean who write a name or a shell's pattern: the dots of names such
// as ghcr.io are dots, and a star is one of a shell unless it follows what a regular expression would repeat.
func meantPattern(re string) string {
	parts := patternParts().FindAllString(strings.TrimSuffix(strings.TrimPrefix(re, "^"), "$"), -1)
	var all strings.Builder
	before := ""
	for i, part := range parts {
		switch {
		case part == "*" && before == "*": // ** of a shell
			continue
		case part == "*" && len(before) < 2 && before != "." && before != ")":
			all.WriteString(".*")
		case part == "." && ofName().MatchString(before) && i+1 < len(parts) && ofName().MatchString(parts[i+1]):
			all.WriteString(`\.`)
		default:
			all.WriteString(part)
		}
		before = part
	}
	return "^" + all.String() + "$"
}

// PatternWarnings says which lists allow other names than they seem to.
func (c Config) PatternWarnings() (all []string) {
	for _, list := range []struct {
		key      string
		patterns Patterns
	}{
		{"agent.allowed_repositories", c.Agent.AllowedRepositories}, {"job.allowed_images", c.Job.AllowedImages},
	} {
		for _, re := range list.patterns {
			if shown := hidePattern(re); meantPattern(shown) != shown {
				all = append(all, fmt.Sprintf("%s: in %q, a dot is any character, and a * repeats what is before it; write '%s'", list.key, shown, meantPattern(shown)))
			}
		}
	}
	return all
}
