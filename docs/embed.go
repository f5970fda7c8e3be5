// Package docs holds the pages that kbnode shows itself.
package docs

import _ "embed" // for Doctor

// Doctor is the page on kbnode doctor, with a chapter on each check.
//
//go:embed doctor.md
var Doctor string
