// Package systemd holds the unit templates that kbnode writes, as data.
package systemd

import "embed"

// Templates are the unit files in text/template form; package plan fills them.
//
//go:embed *.tmpl
var Templates embed.FS
