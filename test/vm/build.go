package vm

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// builder makes templates. Its owner holds the lock of the cache.
type builder struct {
	cache, agent, guestd string
	suite                suite
	log                  *slog.Logger
}

// make fills a directory with a template.
func (b *builder) make(ctx context.Context, tmp string) error {
	trees, err := b.trees(ctx)
	if err != nil {
		return err
	}
	b.log.Info("disk being made", "path", tmp)
	src, err := b.unpackSource(tmp)
	if err != nil {
		return err
	}
	if err := asRoot(ctx, "AGENT="+b.agent, "GUESTD="+b.guestd,
		"sh", filepath.Join(src, "disk.sh"), trees, src, tmp); err != nil {
		return err
	}
	if err := os.RemoveAll(src); err != nil {
		return err
	}
	fw := firmware{filepath.Join(tmp, "vmlinuz"), filepath.Join(tmp, "initrd")}
	if err := b.initrd(ctx, tmp, fw); err != nil {
		return err
	}
	if err := newDisk(ctx, filepath.Join(tmp, "disk.qcow2"), "disk.raw", "raw"); err != nil {
		return err
	}
	return b.bootOnce(ctx, tmp, fw)
}

// trees returns the directory of the Debian trees, which only rootfs.sh decides on.
func (b *builder) trees(ctx context.Context) (string, error) {
	script, err := b.suite.script("rootfs.sh")
	if err != nil {
		return "", err
	}
	return cached(b.cache, "trees", script, func(tmp string) error {
		b.log.Info("packages being unpacked", "path", tmp)
		src, err := b.unpackSource(tmp)
		if err == nil {
			err = asRoot(ctx, "sh", filepath.Join(src, "rootfs.sh"), tmp)
		}
		return errors.Join(err, os.RemoveAll(src))
	})
}

func (b *builder) unpackSource(dir string) (string, error) {
	src := filepath.Join(dir, "src")
	return src, b.suite.unpack(src)
}

// initrd packs the initramfs, reads the firmware's processor table with it, and
// packs it again with the reordered table in front.
func (b *builder) initrd(ctx context.Context, dir string, fw firmware) error {
	entries, err := os.ReadDir(filepath.Join(dir, "boot"))
	if err != nil {
		return err
	}
	const directory, regular = 0o040755, 0o100755
	var files []cpioFile
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, "boot", e.Name()))
		if err != nil {
			return err
		}
		files = append(files, cpioFile{e.Name(), regular, data})
	}
	root := cpioArchive(files)
	if err := os.WriteFile(fw.initrd, root, 0o644); err != nil {
		return err
	}
	table, err := b.dumpMADT(ctx, dir, fw)
	if err != nil {
		return err
	}
	if table, err = reorderMADT(table, 2); err != nil {
		return err
	}
	acpi := cpioArchive([]cpioFile{
		{"kernel", directory, nil},
		{"kernel/firmware", directory, nil},
		{"kernel/firmware/acpi", directory, nil},
		{"kernel/firmware/acpi/apic.aml", 0o100644, table},
	})
	return os.WriteFile(fw.initrd, slices.Concat(acpi, root), 0o644)
}

func (b *builder) dumpMADT(ctx context.Context, dir string, fw firmware) ([]byte, error) {
	m, err := start(qemuArgs(fw, memory{dir: dir, shared: true}, "", " kbvm.dump"), nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = m.Close() }()
	select {
	case <-m.ended:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	console := strings.ReplaceAll(m.Log("serial.log"), "\r", "")
	_, text, ok := strings.Cut(console, "kbvm-begin\n")
	text, _, ok2 := strings.Cut(text, "kbvm-end")
	if !ok || !ok2 {
		return nil, fmt.Errorf("no processor table on the console:\n%s%s", console, m.Log("qemu.log"))
	}
	return base64.StdEncoding.DecodeString(strings.ReplaceAll(text, "\n", ""))
}

// warmUp prepares the guest, and leaves its images and what its services do only once
// ready for the forks. What the emulator translates, and caches of files, end with it:
// a second pass gains nothing.
const warmUp = `
for image in kernelbot-test busybox; do
	tag=$image:latest; [ $image != busybox ] || tag=busybox:test
	docker import -c 'CMD ["/bin/sh"]' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
		/srv/images/$image.tar $tag
	rm /srv/images/$image.tar
done
docker run --rm --init --device nvidia.com/gpu=0 kernelbot-test:latest python3 -c 'import json, sys; print(sys.version)'
docker run --rm -t busybox:test true
buildkite-agent --version
git clone -q https://github.com/gpu-mode/kernelbot /tmp/kernelbot
rm -r /tmp/kernelbot
systemctl daemon-reload
systemctl status docker.service >/dev/null
journalctl --rotate --vacuum-size=1M >/dev/null 2>&1
sync
echo 3 >/proc/sys/vm/drop_caches
`

// bootOnce boots the machine, warms it up and freezes it.
func (b *builder) bootOnce(ctx context.Context, dir string, fw firmware) error {
	b.log.Info("machine being booted once", "path", dir)
	m, err := start(qemuArgs(fw, memory{dir: dir, shared: true}, filepath.Join(dir, "disk.qcow2"), ""), nil)
	if err != nil {
		return err
	}
	if err := b.prepare(ctx, m, filepath.Join(dir, "state")); err != nil {
		return errors.Join(fmt.Errorf("%w\nconsole:\n%s", err, m.Log("serial.log")), m.Close())
	}
	return m.Close()
}

func (b *builder) prepare(ctx context.Context, m *VM, state string) error {
	if err := m.connect(ctx); err != nil {
		return err
	}
	if err := m.Ready(ctx); err != nil {
		return err
	}
	if state, err := m.Booted(ctx); err != nil || state != "running" {
		return errors.Join(err, fmt.Errorf("the guest is %s", state))
	}
	b.log.Info("machine being warmed up")
	r, err := m.Run(ctx, bytes.NewReader(b.suite.text([]byte(warmUp))), "bash", "-eux")
	if err != nil {
		return err
	}
	if r.Code != 0 {
		return fmt.Errorf("warm up: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	return m.freeze(ctx, state)
}

// asRoot runs a program as root, through sudo where this is someone else. The
// scripts give what they make to OWNER.
func asRoot(ctx context.Context, argv ...string) error {
	argv = append([]string{"env", fmt.Sprintf("OWNER=%d:%d", os.Getuid(), os.Getgid())}, argv...)
	if os.Geteuid() != 0 {
		argv = append([]string{"sudo"}, argv...)
	}
	return runProgram(exec.CommandContext(ctx, argv[0], argv[1:]...))
}

// runProgram runs a program and shows what it said only if it fails.
func runProgram(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", filepath.Base(cmd.Path), err, out.Bytes())
	}
	return nil
}
