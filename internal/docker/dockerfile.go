package docker

import (
	"errors"
	"regexp"
	"slices"
	"strings"
)

var (
	comments  = regexp.MustCompile(`(?m)^[ \t]*#.*\n?`)
	continues = regexp.MustCompile(`\\[ \t]*\r?\n`)
	fromLine  = regexp.MustCompile(`(?im)^[ \t]*FROM[ \t]+\S`)
	argLine   = regexp.MustCompile(`(?im)^[ \t]*ARG[ \t]+(.+)$`)
	argName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// builtin are the arguments that every build accepts, also in lower case.
var builtin = []string{"ALL_PROXY", "FTP_PROXY", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY"}

// BuildArgs returns the arguments that a Dockerfile declares, in its order. It refuses text that
// is not a Dockerfile.
func BuildArgs(dockerfile string) ([]string, error) {
	text := continues.ReplaceAllString(comments.ReplaceAllString(dockerfile, ""), " ")
	if !fromLine.MatchString(text) {
		return nil, errors.New("it has no FROM, so it is not a Dockerfile")
	}
	names := []string{}
	for _, line := range argLine.FindAllStringSubmatch(text, -1) {
		// A default with blanks yields names that no one declared, which does no harm: the
		// builder reports them if it gets them.
		for word := range strings.FieldsSeq(line[1]) {
			if name, _, _ := strings.Cut(word, "="); argName.MatchString(name) && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	return names, nil
}

// TakesArg reports whether a build accepts an argument: one that its Dockerfile declares, or one
// that needs no declaration.
func TakesArg(declared []string, name string) bool {
	upper := strings.ToUpper(name)
	return slices.Contains(declared, name) || slices.Contains(builtin, upper) && (name == upper || name == strings.ToLower(name))
}
