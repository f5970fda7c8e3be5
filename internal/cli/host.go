package cli

import (
	"context"
	"fmt"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
)

func needRoot(s term.Streams, command string) error {
	if !s.Root {
		return fmt.Errorf("%s changes the system and must run as root; type %s", command, s.Again())
	}
	return nil
}

// toRead is needRoot for a command that changes nothing.
func toRead(s term.Streams, command string) error {
	if !s.Root {
		return fmt.Errorf("%s must run as root; type %s", command, s.Again())
	}
	return nil
}

// changeLocked opens this machine and takes its lock.
func changeLocked(ctx context.Context, s term.Streams, command string) (*node.Node, node.Host, func(), error) {
	n, host, err := change(ctx, s, command)
	if err != nil {
		return nil, host, nil, err
	}
	release, err := n.Lock(ctx, host.Host)
	if err != nil {
		host.Close()
		return nil, host, nil, err
	}
	return n, host, func() { release(); host.Close() }, nil
}

// change opens this machine for a command that changes it.
func change(ctx context.Context, s term.Streams, command string) (*node.Node, node.Host, error) {
	if err := needRoot(s, command); err != nil {
		return nil, node.Host{}, err
	}
	n := here(s)
	host, err := n.Open(ctx)
	return n, host, err
}
