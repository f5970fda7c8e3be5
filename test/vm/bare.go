package vm

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// Bare makes a machine of the tools as a new user has it: without
// kbnode, but for its package in root's home directory. KBNODE_DEBS names the
// directory on the host in which make debs has left new.deb.
func (m *VM) Bare(ctx context.Context) error {
	file, err := os.Open(filepath.Join(os.Getenv("KBNODE_DEBS"), "new.deb"))
	if err != nil {
		return fmt.Errorf("KBNODE_DEBS: %w; make debs makes it", err)
	}
	err = m.Put(ctx, "/root/new.deb", 0o644, file)
	_ = file.Close()
	if err != nil {
		return err
	}
	r, err := m.Run(ctx, nil, "sh", "-ec", `rm -f /usr/local/bin/kbnode; cd /root
		mv new.deb "$(dpkg-deb --show --showformat 'kbnode_${Version}_${Architecture}.deb' new.deb)"`)
	if err == nil && r.Code != 0 {
		err = fmt.Errorf("put the package in its place: %s", r.Stderr)
	}
	return err
}
