package vm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
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
	cache, done, err := lockCache(ctx)
	if err != nil {
		return "", err
	}
	defer done()
	dir, err := cached(cache, "debs", []byte(debs+guest+strings.Join(names, " ")), func(dir string) error {
		cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", debs, "sh", filepath.Join(dir, "debs.tar")}, names...)...)
		cmd.Stdin = strings.NewReader(guest)
		return runProgram(cmd)
	})
	if err != nil {
		return "", fmt.Errorf("fetch packages: %w", err)
	}
	return filepath.Join(dir, "debs.tar"), nil
}
