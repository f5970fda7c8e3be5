package job

import (
	"regexp"
	"slices"
	"strings"
)

const github = "https://github.com/"

// Allows reports whether a node's list of regular expressions allows the repository of a Spec. They
// match what a build names, which may have been one of GitHub's SSH addresses.
func Allows(patterns []string, repository string) bool {
	if matchesAny(patterns, repository) {
		return true
	}
	name, ok := strings.CutPrefix(repository, github)
	return ok && (matchesAny(patterns, "git@github.com:"+name) || matchesAny(patterns, "ssh://git@github.com/"+name))
}

// matchesAny means what it does for buildkite-agent's lists.
func matchesAny(patterns []string, repository string) bool {
	return slices.ContainsFunc(patterns, func(expr string) bool {
		re, err := regexp.Compile(expr)
		return err == nil && re.MatchString(repository)
	})
}
