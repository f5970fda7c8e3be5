// Command kbnode-runner is kbnode in a job's container: it evaluates a submission, and tries
// what no job may do for kbnode selftest.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner/compile"
	"github.com/gpu-mode/kbnode/internal/node/selftest/probe"
)

func main() {
	if compile.Invoked() {
		os.Exit(compile.Client())
	}
	switch args := os.Args[1:]; {
	case len(args) > 0 && args[0] == "runner":
		os.Exit(runner.Command(context.Background(), args[1:]))
	case len(args) == 2 && args[0] == "probe":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := probe.Run(ctx, args[1], os.Stdout); err != nil {
			fmt.Fprintf(os.Stderr, "kbnode: %v\n", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "kbnode: a job's container has only kbnode runner; type other commands on the node")
		os.Exit(2)
	}
}
