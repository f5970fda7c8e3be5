// Package image holds the Dockerfile of the evaluation image, as data.
package image

import _ "embed"

// Dockerfile needs no other file.
//
//go:embed Dockerfile
var Dockerfile string
