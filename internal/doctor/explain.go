package doctor

import (
	"strings"

	"github.com/gpu-mode/kbnode/docs"
)

// Explain returns the chapter of the documents on a check. For names of groups and unknown
// words it returns an *UnknownError.
func Explain(id string) (string, error) {
	var chapter strings.Builder
	within := false
	for line := range strings.Lines(docs.Doctor) {
		heading, is := strings.CutPrefix(line, "### ")
		switch {
		case is && !within:
			within = strings.TrimSpace(heading) == id
		case is, within && strings.HasPrefix(line, "## "):
			if within {
				return strings.TrimSpace(chapter.String()) + "\n", nil
			}
		case within:
			chapter.WriteString(line)
		}
	}
	if chapter.Len() == 0 {
		return "", &UnknownError{id}
	}
	return strings.TrimSpace(chapter.String()) + "\n", nil
}
