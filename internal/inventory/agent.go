package inventory

import (
	"regexp"
	"slices"
	"strings"
)

// agentVersion is "3.76.2" of "buildkite-agent version 3.76.2+build.4321", with
// the mark of a pre-release where there is one.
func agentVersion(output string) string {
	words := strings.Fields(output)
	if len(words) < 3 || words[1] != "version" {
		return ""
	}
	version, _, _ := strings.Cut(strings.TrimSuffix(words[2], ","), "+")
	return version
}

// agentKeys are the configuration keys that `buildkite-agent start --help`
// lists: every long flag is one. Sorted.
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
