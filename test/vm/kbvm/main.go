// Command kbvm drives the virtual machine rig for people; tests use package vm.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/gpu-mode/kbnode/test/vm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code, err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "kbvm:", err)
		code = 1
	}
	os.Exit(code)
}

func run(ctx context.Context, args []string) (code int, err error) {
	commands := map[string]func(context.Context, *vm.VM) (int, error){
		"image":    nil,
		"shell":    shell,
		"tutorial": tutorial,
		"demo":     demo,
	}
	if len(args) > 0 && args[0] == "record" {
		return record(args[1:])
	}
	if len(args) > 0 && args[0] == "stale" {
		return stale(args[1:], os.Stdout)
	}
	if len(args) != 1 {
		return 2, errors.New("write kbvm trees, image, shell, tutorial, demo, record or stale")
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if args[0] == "trees" {
		return 0, vm.EnsureTrees(ctx, log, vm.Trixie)
	}
	command, ok := commands[args[0]]
	if !ok {
		return 2, fmt.Errorf("unknown command %q; write trees, image, shell, tutorial, demo, record or stale", args[0])
	}
	t, err := vm.Ensure(ctx, log, vm.Trixie)
	if err != nil || command == nil {
		return 0, err
	}
	m, err := t.Fork(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	if err := m.InstallTools(ctx); err != nil {
		return 0, err
	}
	return command(ctx, m)
}
