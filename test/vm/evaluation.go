package vm

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

//go:embed evaluation/debian.sh
var debianScript []byte

// Debian is a directory with what an image is built of in a guest, which has no
// network: base.tar, a root as debian:13-slim has it, and debs.tar, an archive
// with these packages, which the base expects at mirror. It is kept in the rig's
// cache, beside the templates.
func Debian(ctx context.Context, mirror string, packages ...string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	lock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	words := append([]string{mirror}, packages...)
	sum := sha256.Sum256(fmt.Appendf(debianScript, "%q", words))
	dir := filepath.Join(cache, "debian-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	old, err := filepath.Glob(filepath.Join(cache, "debian-*"))
	if err != nil {
		return "", err
	}
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return "", err
	}
	script := filepath.Join(tmp, "debian.sh")
	if err := os.WriteFile(script, debianScript, 0o600); err != nil {
		return "", err
	}
	if err := asRoot(ctx, append([]string{"sh", script, tmp}, words...)...); err != nil {
		return "", fmt.Errorf("fetch %s: %w", strings.Join(packages, ", "), err)
	}
	for _, dir := range old {
		err = errors.Join(err, os.RemoveAll(dir))
	}
	return dir, errors.Join(err, os.Remove(script), os.Rename(tmp, dir))
}
