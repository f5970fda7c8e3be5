package inventory

import (
	"regexp"
	"slices"
	"strings"
)

// agentVersion returns "3.76.2" for "buildkite-agent version 3.76.2+build.4321", including
// a pre-release suffix.
func agentVersion(output string) string {
	words := strings.Fields(output)
	if len(words) < 3 || words[1] != "version" {
		return ""
	}
	version, _, _ := strings.Cut(strings.TrimSuffix(words[2], ","), "+")
	return version
}

// agentKeys returns the configuration keys that `buildkite-agent start --help` lists,
// sorted: every long flag is one.
func agentKeys(help string) []string {
	flag := regexp.MustCompile(`^\s+(?:-\w, )?--([a-z0-9][a-z0-9-]*)`)
	var keys []string
	for line := range strings.Lines(help) {
		if m := flag.FindStringSubmatch(line); m != nil && m[1] != "help" && m[1] != "version" {
			keys = append(keys, m[1])
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}
