// Command kbnode turns a GPU server into isolated Buildkite agents, one per
// GPU.
package main

import (
	"os"

	"github.com/gpu-mode/kbnode/internal/cli"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
)

func main() {
	if compile.Invoked() {
		os.Exit(compile.Client())
	}
	os.Exit(cli.Main(os.Args[1:], cli.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
}
