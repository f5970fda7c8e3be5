package doctor

import (
	"errors"
	"io/fs"
	"net/url"
	"slices"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// planned returns the planned content of a file, or "" if the plan has no such file.
func (m *Machine) planned(name string) string {
	i := slices.IndexFunc(m.Plan.Files, func(f plan.File) bool { return f.Path == name })
	if i < 0 {
		return ""
	}
	return m.Plan.Files[i].Content
}

// because returns err without the path or URL, which the finding already names.
func because(err error) string {
	if u, is := errors.AsType[*url.Error](err); is {
		err = u.Err
	}
	if p, is := errors.AsType[*fs.PathError](err); is {
		err = p.Err
	}
	return lines(err)
}
