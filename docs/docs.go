// Package docs has the pages that kbnode shows parts of.
package docs

import _ "embed" // for the page below

// Doctor is the page on doctor, with a chapter on each check.
//
//go:embed doctor.md
var Doctor string
