// Package lazy makes values when they are needed first. The one program also starts for
// every evaluation of a submission, which needs few of them.
package lazy

import (
	"regexp"
	"sync"
)

// Regexp compiles a regular expression at its first use. One that does not compile panics then.
func Regexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
