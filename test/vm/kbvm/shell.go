package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/gpu-mode/kbnode/test/vm"
)

// shell installs kbnode in the machine and opens a prompt.
func shell(ctx context.Context, m *vm.VM) (code int, err error) {
	fmt.Fprintf(os.Stderr, "# %s\n", installCommand)
	code, err = m.Stream(ctx, os.Stderr, os.Stderr, "bash", "-c", installCommand)
	if err != nil {
		return code, err
	}
	if code != 0 {
		fmt.Fprintf(os.Stderr, "exit status %d\n", code)
	}
	return prompt(ctx, m, "A machine of your own; exit ends it. Try kbnode status, bkstub submit --queue b200 --wait, sim-gpu lose 3.")
}

// tutorial opens a prompt where nothing of kbnode is but its package.
func tutorial(ctx context.Context, m *vm.VM) (code int, err error) {
	if err := m.Bare(ctx); err != nil {
		return 1, err
	}
	return prompt(ctx, m, "The machine of docs/tutorial.md; exit ends it.")
}

// prompt opens one on the terminal. If standard input is none, it is run as a bash
// script.
func prompt(ctx context.Context, m *vm.VM, greeting string) (code int, err error) {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		r, err := m.Run(ctx, os.Stdin, "bash")
		fmt.Fprint(os.Stderr, r.Stderr)
		fmt.Print(r.Stdout)
		return r.Code, err
	}
	fmt.Fprintln(os.Stderr, greeting)
	before, err := term.MakeRaw(fd)
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, term.Restore(fd, before)) }()
	_, err = m.Terminal(ctx, os.Stdin, os.Stdout, sizes(ctx, fd), "bash", "--login")
	return 0, err // the last command's status does not matter
}

// sizes tells the size of the terminal now and whenever it changes.
func sizes(ctx context.Context, fd int) <-chan [2]uint16 {
	changed := make(chan os.Signal, 1)
	signal.Notify(changed, syscall.SIGWINCH)
	out := make(chan [2]uint16, 1)
	go func() {
		defer close(out)
		defer signal.Stop(changed)
		for {
			cols, rows, err := term.GetSize(fd)
			if err != nil {
				cols, rows = 80, 24
			}
			out <- [2]uint16{uint16(rows), uint16(cols)}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}()
	return out
}
