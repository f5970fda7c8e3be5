package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

//go:embed all:image
var imageFS embed.FS

// Template is a booted machine on disk, ready to be forked.
type Template struct {
	dir string
	fw  firmware
	use *os.File // shared lock: pruning leaves the directory alone
}

// Ensure returns the template for this source, agent and QEMU, and makes it if
// the cache does not have it: a few minutes, and root (or sudo) for the image.
// The cache is $KBNODE_VM_CACHE, else kbnode/vm in the user's cache directory;
// $AGENT names the buildkite-agent that goes into the image.
func Ensure(ctx context.Context, log *slog.Logger) (*Template, error) {
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	agent := os.Getenv("AGENT")
	if agent == "" {
		return nil, errors.New("AGENT does not name a buildkite-agent binary; run this through make")
	}
	lock, err := lockFile(ctx, filepath.Join(cache, "lock"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = lock.Close() }()

	b := &builder{cache: cache, agent: agent, log: log}
	if err := b.clean(); err != nil {
		return nil, err
	}
	b.guestd = filepath.Join(cache, "guestd")
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w",
		"-o", b.guestd, "github.com/gpu-mode/kbnode/test/vm/guestd")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=")
	if err := quietly(build); err != nil {
		return nil, err
	}
	key, err := b.key(ctx)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cache, "template-"+key)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		if err := b.make(ctx, dir); err != nil {
			return nil, fmt.Errorf("make the machine's template: %w", err)
		}
	} else if err != nil {
		return nil, err
	}
	if err := touch(dir); err != nil {
		return nil, err
	}
	use, err := os.Open(filepath.Join(dir, "state"))
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(use.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(err, use.Close())
	}
	t := &Template{dir: dir, use: use, fw: firmware{filepath.Join(dir, "vmlinuz"), filepath.Join(dir, "initrd")}}
	return t, b.prune()
}

// Fork starts a machine that goes on where the template stopped.
func (t *Template) Fork(ctx context.Context) (*VM, error) {
	args := qemuArgs(t.fw, memory{dir: t.dir}, "disk.qcow2", "")
	m, err := start(append(args, "-incoming", "defer"), func(dir string) error {
		return newDisk(ctx, filepath.Join(dir, "disk.qcow2"), filepath.Join(t.dir, "disk.qcow2"), "qcow2")
	})
	if err != nil {
		return nil, err
	}
	err = m.resume(ctx, filepath.Join(t.dir, "state"))
	if err != nil {
		return nil, errors.Join(fmt.Errorf("fork the machine: %w", err), m.Close())
	}
	return m, nil
}

func (m *VM) resume(ctx context.Context, state string) error {
	if err := m.connect(ctx); err != nil {
		return err
	}
	if err := m.ignoreShared(ctx); err != nil {
		return err
	}
	if _, err := m.qmp.call(ctx, "migrate-incoming", map[string]any{"uri": "exec:cat '" + state + "'"}); err != nil {
		return err
	}
	if err := m.qmp.migrated(ctx); err != nil {
		return err
	}
	if _, err := m.qmp.call(ctx, "cont", nil); err != nil {
		return err
	}
	return m.Ready(ctx)
}

// freeze writes everything but the RAM, which lies in its files already.
func (m *VM) freeze(ctx context.Context, state string) error {
	if _, err := m.qmp.call(ctx, "stop", nil); err != nil {
		return err
	}
	if err := m.ignoreShared(ctx); err != nil {
		return err
	}
	if _, err := m.qmp.call(ctx, "migrate", map[string]any{"uri": "exec:cat >'" + state + "'"}); err != nil {
		return err
	}
	if err := m.qmp.migrated(ctx); err != nil {
		return err
	}
	_, err := m.qmp.call(ctx, "quit", nil)
	if err == nil {
		<-m.ended
	}
	return err
}

func (m *VM) ignoreShared(ctx context.Context) error {
	_, err := m.qmp.call(ctx, "migrate-set-capabilities", map[string]any{
		"capabilities": []map[string]any{{"capability": "x-ignore-shared", "state": true}},
	})
	return err
}

func newDisk(ctx context.Context, path, backing, format string) error {
	return quietly(exec.CommandContext(ctx, "qemu-img", "create", "-q", "-f", "qcow2", "-F", format, "-b", backing, path))
}

// builder makes templates. Its owner holds the lock of the cache.
type builder struct {
	cache, agent, guestd string
	log                  *slog.Logger
}

func cacheDir() (string, error) {
	dir := os.Getenv("KBNODE_VM_CACHE")
	if dir == "" {
		base, err := os.UserCacheDir()
		if err != nil {
			return "", err
		}
		dir = filepath.Join(base, "kbnode", "vm")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	if strings.ContainsAny(dir, "',\n") {
		return "", fmt.Errorf("cache directory %q holds a quote or a comma, which QEMU would misread; set KBNODE_VM_CACHE to another", dir)
	}
	return dir, os.MkdirAll(dir, 0o755)
}

// key names what a template depends on, besides the state of Debian's mirror
// when its trees were made.
func (b *builder) key(ctx context.Context) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(imageFS, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := imageFS.ReadFile(path)
		if err == nil {
			_, err = fmt.Fprintf(h, "%s %x\n", path, sha256.Sum256(content))
		}
		return err
	})
	if err != nil {
		return "", err
	}
	for _, path := range []string{b.agent, b.guestd} {
		if err := hashFile(h, path); err != nil {
			return "", err
		}
	}
	version, err := exec.CommandContext(ctx, qemuBinary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("run QEMU: %w; make vm-deps installs it", err)
	}
	if _, err := fmt.Fprintf(h, "%s %q %s", version, qemuArgs(firmware{}, memory{}, "disk", ""), warmUp); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

func hashFile(h io.Writer, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	_, err = io.Copy(h, f)
	return err
}

// make builds in a directory of its own and renames it when all is done.
func (b *builder) make(ctx context.Context, dir string) error {
	trees, err := b.trees(ctx)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(b.cache, "tmp-")
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
	if err := b.bootOnce(ctx, tmp, fw); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// trees returns the directory of the Debian trees, which only rootfs.sh decides on.
func (b *builder) trees(ctx context.Context) (string, error) {
	script, err := imageFS.ReadFile("image/rootfs.sh")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(script)
	dir := filepath.Join(b.cache, "trees-"+hex.EncodeToString(sum[:8]))
	if _, err := os.Stat(dir); err == nil {
		return dir, touch(dir)
	}
	tmp, err := os.MkdirTemp(b.cache, "tmp-")
	if err != nil {
		return "", err
	}
	b.log.Info("packages being unpacked", "path", tmp)
	src, err := b.unpackSource(tmp)
	if err != nil {
		return "", err
	}
	if err := asRoot(ctx, "sh", filepath.Join(src, "rootfs.sh"), tmp); err != nil {
		return "", err
	}
	return dir, errors.Join(os.RemoveAll(src), os.Rename(tmp, dir))
}

func (b *builder) unpackSource(dir string) (string, error) {
	src := filepath.Join(dir, "src")
	sub, err := fs.Sub(imageFS, "image")
	if err != nil {
		return "", err
	}
	return src, os.CopyFS(src, sub)
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

// warmUp prepares the guest, and leaves its translated code and its images
// ready for the forks.
const warmUp = `
for image in kernelbot-test busybox; do
	tag=$image:latest; [ $image != busybox ] || tag=busybox:test
	docker import -c 'CMD ["/bin/sh"]' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
		/srv/images/$image.tar $tag
	rm /srv/images/$image.tar
done
for i in 1 2; do
	docker run --rm --init --device nvidia.com/gpu=0 kernelbot-test:latest python3 -c 'import json, sys; print(sys.version)'
	docker run --rm -t busybox:test true
	buildkite-agent --version
	git clone -q https://github.com/gpu-mode/kernelbot /tmp/kernelbot
	rm -r /tmp/kernelbot
	systemctl daemon-reload
	systemctl status docker.service >/dev/null
done
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
	r, err := m.Run(ctx, strings.NewReader(warmUp), "bash", "-eux")
	if err != nil {
		return err
	}
	if r.Code != 0 {
		return fmt.Errorf("warm up: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	return m.freeze(ctx, state)
}

// clean removes what an interrupted build left.
func (b *builder) clean() error {
	old, err := filepath.Glob(filepath.Join(b.cache, "tmp-*"))
	if err != nil {
		return err
	}
	for _, dir := range old {
		if err := asRoot(context.Background(), "rm", "-rf", dir); err != nil {
			return err
		}
	}
	return nil
}

// prune keeps the templates and trees used last, and those in use: work on the
// image must not fill the disk.
func (b *builder) prune() error {
	const keep = 3
	for _, pattern := range []string{"template-*", "trees-*"} {
		dirs, err := filepath.Glob(filepath.Join(b.cache, pattern))
		if err != nil {
			return err
		}
		used := map[string]time.Time{}
		for _, dir := range dirs {
			st, err := os.Stat(dir)
			if err != nil {
				return err
			}
			used[dir] = st.ModTime()
		}
		slices.SortFunc(dirs, func(a, b string) int { return used[b].Compare(used[a]) })
		for _, dir := range dirs[min(keep, len(dirs)):] {
			if err := removeUnused(dir); err != nil {
				return err
			}
		}
	}
	return nil
}

// touch notes that a directory is used.
func touch(dir string) error {
	now := time.Now()
	return os.Chtimes(dir, now, now)
}

func removeUnused(dir string) error {
	f, err := os.Open(filepath.Join(dir, "state"))
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(dir) // trees: whoever uses them holds the cache's lock
	}
	if err != nil {
		return err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
		err = os.RemoveAll(dir)
	}
	return errors.Join(err, f.Close())
}

// asRoot runs a program as root, through sudo where this is somebody else. The
// scripts give what they make to OWNER.
func asRoot(ctx context.Context, argv ...string) error {
	argv = append([]string{"env", fmt.Sprintf("OWNER=%d:%d", os.Getuid(), os.Getgid())}, argv...)
	if os.Geteuid() != 0 {
		argv = append([]string{"sudo"}, argv...)
	}
	return quietly(exec.CommandContext(ctx, argv[0], argv[1:]...))
}

// quietly runs a program and shows what it said only if it fails.
func quietly(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", filepath.Base(cmd.Path), err, out.Bytes())
	}
	return nil
}
