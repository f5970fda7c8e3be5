package vm

import (
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

//go:embed debs.sh
var debs string

// InstallPackages installs packages of the guest's Debian that the template lacks,
// with what they need. They are fetched here, since the guest has no network, and kept
// in the cache.
func (m *Machine) InstallPackages(names ...string) {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), m.Limit(Patience))
	defer cancel()
	if err := m.VM.installPackages(ctx, names); err != nil {
		m.t.Fatalf("install %s: %v", strings.Join(names, ", "), err)
	}
}

func (m *VM) installPackages(ctx context.Context, names []string) error {
	has, err := m.Run(ctx, nil, "tar", "-c", "-C", "/", "etc/apt", "var/lib/dpkg/status")
	if err == nil && has.Code != 0 {
		err = errors.New(has.Stderr)
	}
	if err != nil {
		return fmt.Errorf("ask for the guest's packages: %w", err)
	}
	archive, err := fetchPackages(ctx, has.Stdout, names)
	if err != nil {
		return err
	}
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	// Compiling Python for later takes minutes, emulated; what is imported compiles itself.
	r, err := m.Run(ctx, f, "bash", "-euc", `mkdir /root/debs; tar -x -C /root/debs
		mount --bind /bin/true /usr/bin/py3compile
		DEBIAN_FRONTEND=noninteractive dpkg --force-unsafe-io -i /root/debs/*.deb
		umount /usr/bin/py3compile; rm -r /root/debs`)
	if err == nil && r.Code != 0 {
		err = errors.New(r.Stdout + r.Stderr)
	}
	return err
}

// fetchPackages returns an archive of the packages that a guest lacks.
func fetchPackages(ctx context.Context, guest string, names []string) (string, error) {
	cache, err := cacheDir()
	if err != nil {
		return "", err
	}
	lock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return "", err
	}
	defer func() { _ = lock.Close() }()
	sum := sha256.Sum256([]byte(debs + guest + strings.Join(names, " ")))
	dir := filepath.Join(cache, "debs-"+hex.EncodeToString(sum[:8]))
	archive := filepath.Join(dir, "debs.tar")
	if _, err := os.Stat(dir); err == nil || !errors.Is(err, fs.ErrNotExist) {
		return archive, errors.Join(err, touch(dir))
	}
	tmp, err := os.MkdirTemp(cache, "tmp-")
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", debs, "sh", filepath.Join(tmp, "debs.tar")}, names...)...)
	cmd.Stdin = strings.NewReader(guest)
	if err := quietly(cmd); err != nil {
		return "", fmt.Errorf("fetch packages: %w", err)
	}
	return archive, os.Rename(tmp, dir)
}
