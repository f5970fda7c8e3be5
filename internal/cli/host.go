package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gpu-mode/kbnode/internal/node"
)

// needRoot returns an error unless the user is root.
func (s Streams) needRoot(command string) error {
	if !s.root {
		return fmt.Errorf("%s changes the system and must run as root; type %s", command, s.again())
	}
	return nil
}

// toRead is needRoot for a command that changes nothing.
func (s Streams) toRead(command string) error {
	if !s.root {
		return fmt.Errorf("%s must run as root; type %s", command, s.again())
	}
	return nil
}

// checkFile refuses a flag whose file does not exist.
func checkFile(flag, name string) error {
	if name != "" && !exists(name) {
		return usagef("%s: %s does not exist; name a file that does", flag, name)
	}
	return nil
}

// exists reports whether a file exists, or cannot be looked for.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// checkFolder refuses a flag whose file cannot be written, because its folder does not exist.
func checkFolder(flag, name string) error {
	if name == "" || name == "-" {
		return nil
	}
	if dir := filepath.Dir(name); !exists(dir) {
		return usagef("%s: the directory %s does not exist; make it first", flag, dir)
	}
	return nil
}

// checkNew refuses a flag whose file exists.
func checkNew(flag, name string) error {
	if _, err := os.Lstat(name); err == nil {
		return usagef("%s: %s already exists; choose another name", flag, name)
	}
	return checkFolder(flag, name)
}

// changeLocked opens this machine and takes its lock.
func changeLocked(ctx context.Context, s Streams, command string) (*node.Node, node.Host, func(), error) {
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
func change(ctx context.Context, s Streams, command string) (*node.Node, node.Host, error) {
	if err := s.needRoot(command); err != nil {
		return nil, node.Host{}, err
	}
	n := here(s)
	host, err := n.Open(ctx)
	return n, host, err
}
