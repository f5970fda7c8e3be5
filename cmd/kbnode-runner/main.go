// Command kbnode-runner is kbnode in a job's container: it evaluates a submission, and tries
// what no job may do for kbnode selftest.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/runner"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
)

func main() {
	switch args := os.Args[1:]; {
	case len(args) > 0 && args[0] == "runner":
		os.Exit(runner.Command(context.Background(), args[1:]))
	case len(args) == 2 && args[0] == "probe":
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if err := try(ctx, args[1]); err != nil {
			fmt.Fprintf(os.Stderr, "kbnode: %v\n", err)
			os.Exit(1)
		}
	default:
		fmt.Fprintln(os.Stderr, "kbnode: a job's container has only kbnode runner; type other commands on the node")
		os.Exit(2)
	}
}

// try runs a request of selftest and prints what it found.
func try(ctx context.Context, request string) error {
	var ask probe.Ask
	if err := json.Unmarshal([]byte(request), &ask); err != nil {
		return fmt.Errorf("the argument is not a request of selftest: %w", err)
	}
	facts, err := probe.Run(ctx, ask)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(facts)
}
