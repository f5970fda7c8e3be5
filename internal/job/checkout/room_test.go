package checkout

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// another makes one more repository beside o, with one file of that many random bytes.
func (o origin) another(name string, size int) (address, hash string) {
	o.t.Helper()
	other := origin{o.t, filepath.Join(filepath.Dir(o.dir), name)}
	must.Do(o.t, os.Mkdir(other.dir, 0o755))
	other.git("init", "-q", "-b", "main")
	text := make([]byte, size)
	_, _ = rand.Read(text) // never fails
	other.put("a", string(text), 0o644)
	return "https://git.example/gpu-mode/" + name, other.commit()
}

// names returns those of some repositories that have a mirror.
func (m Mirrors) names(t *testing.T, addresses ...string) (names []string) {
	t.Helper()
	for _, address := range addresses {
		name := mirrorName(address)
		_, err1 := os.Stat(m.path(name))
		_, err2 := os.Stat(filepath.Join(m.Dir, name+lockSuffix))
		if (err1 == nil) != (err2 == nil) {
			t.Errorf("%s: mirror %v, lock %v", address, err1, err2)
		}
		if err1 == nil {
			names = append(names, address[strings.LastIndexByte(address, '/')+1:])
		}
	}
	return names
}

// TestTooLarge removes the mirrors that no one uses when all together have more than their share.
func TestTooLarge(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	m.limits.mirrors = 250 << 10
	var all []string
	get := func(name string, size int) {
		t.Helper()
		address, hash := o.another(name, size)
		all = append(all, address)
		unpacked(t, m, Source{Repository: address, Commit: hash})
	}
	want := func(when string, names ...string) {
		t.Helper()
		if got := m.names(t, all...); !slices.Equal(got, names) {
			t.Errorf("%s: %q, want %q", when, got, names)
		}
	}
	get("a", 100<<10)
	get("b", 100<<10)
	get("c", 100<<10)
	want("a fetch at the limit", "a", "b", "c")
	inUse, err := m.lock(t.Context(), mirrorName(all[1])+lockSuffix, unix.LOCK_SH)
	must.Do(t, err)
	defer unlock(inUse)
	// What a removal that ended early left goes, too.
	left := filepath.Join(m.Dir, ".kbnode-X", "y")
	must.Do(t, os.MkdirAll(left, 0o700))
	get("d", 1)
	want("all that no one uses go", "b", "d")
	if _, err := os.Stat(filepath.Dir(left)); err == nil {
		t.Error("what an earlier removal left is there")
	}
}

// TestPacks makes a mirror of too many packs again.
func TestPacks(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	hash := o.commit()
	unpacked(t, m, Source{Commit: hash})
	dir := m.path(mirrorName(address))
	for i := range maxPacks {
		must.Do(t, os.WriteFile(filepath.Join(dir, "objects/pack", fmt.Sprintf("pack-%040d.pack", i)), nil, 0o600))
	}
	unpacked(t, m, Source{Commit: "HEAD", Branch: "main"})
	if packs, _ := packsOf(dir); packs != 1 {
		t.Errorf("%d packs", packs)
	}
}

// TestDamaged makes a mirror again that lost a file, in the next job.
func TestDamaged(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	o.put("a", strings.Repeat("x", 100), 0o644)
	hash := o.commit()
	blob := o.git("rev-parse", "HEAD:a")
	unpacked(t, m, Source{Commit: hash})
	dir := m.path(mirrorName(address))
	mirror := origin{t, dir}
	pack, err := filepath.Glob(filepath.Join(dir, "objects/pack/*.pack"))
	if err != nil || len(pack) != 1 {
		t.Fatal(pack, err)
	}
	text, err := os.ReadFile(pack[0])
	must.Do(t, err)
	for _, file := range []string{pack[0], strings.TrimSuffix(pack[0], "pack") + "idx"} {
		must.Do(t, os.Remove(file))
	}
	unpack := mirror.command("unpack-objects", "-q")
	unpack.Stdin = bytes.NewReader(text)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatal(err, string(out))
	}
	must.Do(t, os.Remove(filepath.Join(dir, "objects", blob[:2], blob[2:])))
	if _, _, err := checkOut(t, m, Source{Commit: hash}); err == nil || refused(err, "") {
		t.Errorf("a damaged mirror: %v", err)
	}
	unpacked(t, m, Source{Commit: hash})
}

// TestLockOfRemoved locks the mirror that is there, not one that is removed meanwhile.
func TestLockOfRemoved(t *testing.T) {
	t.Parallel()
	_, m := setUp(t)
	name := mirrorName(address) + lockSuffix
	alone, err := m.tryLock(name, unix.LOCK_EX)
	must.Do(t, err)
	if _, err := m.tryLock(name, unix.LOCK_SH); !errors.Is(err, errBusy) {
		t.Errorf("beside who has it alone: %v", err)
	}
	must.Do(t, os.Remove(alone.Name()))
	got, err := m.lock(t.Context(), name, unix.LOCK_EX)
	must.Do(t, err)
	unlock(alone)
	if _, err := m.tryLock(name, unix.LOCK_EX); !errors.Is(err, errBusy) {
		t.Errorf("the lock is not alone: %v", err)
	}
	unlock(got)
	for range 2 {
		shared, err := m.tryLock(name, unix.LOCK_SH)
		must.Do(t, err)
		defer unlock(shared)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*lockPoll)
	defer cancel()
	if _, err := m.lock(ctx, name, unix.LOCK_EX); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("beside those who share it: %v", err)
	}
}

// smallDisk mounts a disk of this size.
func smallDisk(t *testing.T, dir, size string) {
	t.Helper()
	must.Root(t, "only root can make a small disk")
	if err := unix.Mount("none", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Skip("no small disk:", err)
	}
	t.Cleanup(func() {
		// What another test starts has this process's files open until it executes its program.
		err := unix.Unmount(dir, 0)
		for range 1000 {
			if !errors.Is(err, unix.EBUSY) {
				break
			}
			time.Sleep(10 * time.Millisecond)
			err = unix.Unmount(dir, 0)
		}
		must.Do(t, err)
	})
}

// TestSmallDisk refuses a commit that is larger than the slot's disk. One for which others have left no room is
// not at fault.
func TestSmallDisk(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	smallDisk(t, dir, "2m")
	o, m := setUp(t)
	small, hashOfSmall := o.another("small", 1<<20)
	large, hashOfLarge := o.another("large", 3<<20)
	check := func(s Source) error {
		to, err := os.OpenRoot(dir)
		must.Do(t, err)
		_, err = m.Checkout(t.Context(), s, to, 0, 0)
		must.Do(t, to.Close())
		return err
	}
	if err := check(Source{Repository: large, Commit: hashOfLarge}); !refused(err, "more than 2 MiB") {
		t.Errorf("a commit larger than the disk: %v", err)
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "others"), make([]byte, 3<<19), 0o600))
	if err := check(Source{Repository: small, Commit: hashOfSmall}); !errors.Is(err, unix.ENOSPC) || refused(err, "") {
		t.Errorf("a commit beside other files: %v", err)
	}
}

// TestFullDisk fetches nothing that would fill the disk, and leaves nothing of what did not fit.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	o, m := setUp(t)
	smallDisk(t, m.Dir, "16m")
	used := func() int64 {
		_, bytes := packsOf(filepath.Join(m.Dir, "*"))
		return bytes
	}
	a, hashOfA := o.another("a", 800<<10)
	b, hashOfB := o.another("b", 800<<10)
	large, hashOfLarge := o.another("large", 2<<20)
	for _, s := range []Source{{Repository: a, Commit: hashOfA}, {Repository: b, Commit: hashOfB}} {
		unpacked(t, m, s)
	}
	before := used()
	if _, _, err := checkOut(t, m, Source{Repository: large, Commit: hashOfLarge}); !errors.Is(err, errDiskFull) || refused(err, "") {
		t.Errorf("a repository that does not fit: %v", err)
	}
	if after := used(); after > before {
		t.Errorf("it left %d bytes", after-before)
	}
	// Others fill the disk: the mirrors give way, and then nothing is fetched.
	must.Do(t, os.WriteFile(filepath.Join(m.Dir, "others"), make([]byte, 12<<20), 0o600))
	c, hashOfC := o.another("c", 1<<10)
	unpacked(t, m, Source{Repository: c, Commit: hashOfC})
	if got := m.names(t, a, b, c); len(got) > 2 || !slices.Contains(got, "c") {
		t.Errorf("mirrors %q", got)
	}
	if err := os.WriteFile(filepath.Join(m.Dir, "more"), make([]byte, 4<<20), 0o600); err == nil {
		t.Log("the disk has more room than expected")
	}
	d, hashOfD := o.another("d", 1)
	if _, _, err := checkOut(t, m, Source{Repository: d, Commit: hashOfD}); !errors.Is(err, errDiskFull) {
		t.Errorf("a full disk: %v", err)
	}
}

// TestUnlockOfForked unlocks also what a child has open that was just forked.
func TestUnlockOfForked(t *testing.T) {
	t.Parallel()
	_, m := setUp(t)
	name := mirrorName(address) + lockSuffix
	l, err := m.tryLock(name, unix.LOCK_SH)
	must.Do(t, err)
	forked, err := unix.Dup(int(l.Fd())) // as fork does
	must.Do(t, err)
	defer unix.Close(forked) //nolint:errcheck // opened by this test
	unlock(l)
	l, err = m.tryLock(name, unix.LOCK_EX)
	must.Do(t, err)
	unlock(l)
}
