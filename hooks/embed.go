// Package hooks holds the Buildkite hooks that kbnode writes, as data.
package hooks

import "embed"

// Scripts are the hooks by their name; each runs in bash and stays thin.
//
//go:embed agent-startup
var Scripts embed.FS
