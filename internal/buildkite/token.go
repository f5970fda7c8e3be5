package buildkite

import (
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// maxToken is the maximum size of a token in bytes; Buildkite's have 45.
const maxToken = 4 << 10

// ParseToken checks an API token; from names where it is from.
func ParseToken(from, text string) (string, error) {
	token := strings.TrimSpace(text)
	switch {
	case token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s contains no API token; a token is one word, such as bkua_…", from)
	case strings.HasPrefix(token, "bkct_"):
		return "", fmt.Errorf("%s contains an agent token; use an API token (Personal Settings, API Access Tokens)", from)
	}
	return token, nil
}

// ReadSecret reads a file that no one else may read.
func ReadSecret(name string) (string, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a named pipe is not waited for
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	owner, known := info.Sys().(*syscall.Stat_t)
	switch {
	case !info.Mode().IsRegular():
		return "", fmt.Errorf("read API token: %s is not a regular file", name)
	case info.Mode().Perm()&0o077 != 0:
		return "", fmt.Errorf("other users can read %s (mode %04o); type chmod 600 %[1]s, and replace the token if someone has read it", name, info.Mode().Perm())
	case !known || int(owner.Uid) != os.Geteuid():
		return "", fmt.Errorf("read API token: %s belongs to another user; make your own copy with mode 0600", name)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxToken+2))
	if err != nil {
		return "", fmt.Errorf("read API token: %w", err)
	}
	return string(text), nil
}
