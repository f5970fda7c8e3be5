package cli

import (
	"context"
	"fmt"
	"os"

	"github.com/gpu-mode/kbnode/internal/node"
)

// needRoot returns an error unless the user is root.
func needRoot(command string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s changes the system and must run as root; type sudo kbnode %s", command, command)
	}
	return nil
}

// toRead is needRoot for a command that changes nothing.
func toRead(command string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s must run as root; type sudo kbnode %[1]s", command)
	}
	return nil
}

// change opens this machine for a command that changes it.
func change(ctx context.Context, s Streams, command string) (*node.Node, node.Host, error) {
	if err := needRoot(command); err != nil {
		return nil, node.Host{}, err
	}
	n := here(s)
	host, err := n.Open(ctx)
	return n, host, err
}
