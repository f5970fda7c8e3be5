// Package lazy computes values on first use. The same program also starts for every
// evaluation of a submission, which needs few of them.
package lazy

import (
	"regexp"
	"sync"
)

// Regexp compiles a regular expression on first use. It panics then if the expression
// is invalid.
func Regexp(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}
