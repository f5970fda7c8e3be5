// Package program has kbnode-runner, the program that jobs' containers get as kbnode.
package program

import (
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"strings"
)

const dir = "bin/" + runtime.GOARCH + "/"

// Missing takes the place of the checksum in a kbnode that was built without the program. No file
// has it, so kbnode tries to write the program, and says why it cannot.
const Missing = "missing"

var errMissing = errors.New("this kbnode was built without the program that jobs run; build it with make build")

// Digest returns the SHA-256 checksum of the program, in hex, or Missing.
func Digest() string {
	text, err := embedded.ReadFile(dir + "kbnode-runner.sha256")
	if err != nil {
		return Missing
	}
	sum, _, _ := strings.Cut(string(text), " ")
	return strings.TrimSpace(sum)
}

// Open returns the program's bytes.
func Open() (io.ReadCloser, error) {
	packed, err := embedded.Open(dir + "kbnode-runner.gz")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errMissing
	}
	if err != nil {
		return nil, fmt.Errorf("read the embedded runner: %w", err)
	}
	z, err := gzip.NewReader(packed)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("unpack the embedded runner: %w", err), packed.Close())
	}
	return z, nil // there is nothing to close in an embedded file
}
