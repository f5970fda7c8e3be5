package cli

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/gpu-mode/kbnode/internal/node"
)

// needRoot returns an error unless the user is root.
func needRoot(command string) error {
	if os.Geteuid() != 0 {
		return &rootError{command + " changes the system and must run as root"}
	}
	return nil
}

// toRead is needRoot for a command that changes nothing.
func toRead(command string) error {
	if os.Geteuid() != 0 {
		return &rootError{command + " must run as root"}
	}
	return nil
}

// checkFile refuses a flag whose file does not exist.
func checkFile(flag, name string) error {
	if name == "" {
		return nil
	}
	if _, err := os.Stat(name); errors.Is(err, fs.ErrNotExist) {
		return usagef("%s: %s does not exist; name a file that does", flag, name)
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
