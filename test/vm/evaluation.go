package vm

import (
	"context"
	_ "embed"
	"fmt"
	"strings"
)

//go:embed evaluation/debian.sh
var debianScript string

// Debian is a directory with what an image is built of in a guest, which has no
// network: base.tar, a root as debian:13-slim has it, and debs.tar, an archive
// with these packages, which the base expects at mirror. It is kept in the rig's
// cache, beside the templates.
func Debian(ctx context.Context, mirror string, packages ...string) (string, error) {
	cache, done, err := lockCache(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	words := append([]string{mirror}, packages...)
	dir, err := cached(cache, "debian", fmt.Appendf(nil, "%s%q", debianScript, words), func(dir string) error {
		return asRoot(ctx, append([]string{"sh", "-c", debianScript, "debian.sh", dir}, words...)...)
	})
	if err != nil {
		return "", fmt.Errorf("fetch %s: %w", strings.Join(packages, ", "), err)
	}
	return dir, nil
}
