// Package checkout gives a job the files of one commit. It fetches a repository into a mirror on
// the node, which all slots share, and unpacks the commit into an empty directory. Nothing that a
// repository contains makes git or kbnode run anything: there is no working tree, and hooks,
// filters, attributes, submodules and LFS do not act.
package checkout

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// maxTime bounds a checkout with all that it waits for.
const maxTime = 20 * time.Minute

// Source names one commit, as a valid job does (package job).
type Source struct {
	Repository string // its HTTPS address
	// Commit is a full SHA-1, or HEAD for the last one of Branch, which Buildkite does not know yet.
	Commit string
	Branch string
}

// Mirrors are the node's mirrors of repositories.
type Mirrors struct {
	Dir string // root's, with a directory for each repository and its lock
	// UID and GID are of the user that runs git and owns the repositories' directories. It has
	// nothing else. Zero is the caller, as in tests.
	UID, GID int

	limits limits
	system string // in place of /etc/gitconfig
	most   int64  // bytes that git may write to one file
}

// RefusedError is a fault of the repository or of the build, which another try does not change.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refuse(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

var hashForm = regexp.MustCompile(`^[0-9a-f]{40}$`)

// Checkout fetches the commit unless the mirror has it, unpacks it into the empty directory to, and
// returns its hash. The files belong to uid and gid. A *RefusedError is the build's fault, and
// every other error the node's or the network's.
func (m Mirrors) Checkout(ctx context.Context, s Source, to *os.Root, uid, gid int) (hash string, err error) {
	ctx, cancel := context.WithTimeout(ctx, maxTime)
	defer cancel()
	name := mirrorName(s.Repository)
	for fetched := false; ; fetched = true {
		if hashForm.MatchString(s.Commit) {
			has, err := m.unpackShared(ctx, name, s.Commit, to, uid, gid)
			if has || err != nil {
				return s.Commit, err
			}
		}
		if fetched {
			return "", lost(s)
		}
		hash, err := m.fetch(ctx, name, s)
		if errors.Is(err, errBusy) {
			return m.checkoutAlone(ctx, s, to, uid, gid)
		}
		if err != nil {
			return "", err
		}
		s.Commit = hash
	}
}

func lost(s Source) error {
	return fmt.Errorf("the mirror of %s lost commit %s; start the job again", s.Repository, s.Commit)
}

// checkoutAlone is Checkout by a mirror of its own, which it removes: another slot's fetch of the same repository takes
// long.
func (m Mirrors) checkoutAlone(ctx context.Context, s Source, to *os.Root, uid, gid int) (hash string, err error) {
	name := mirrorName(rand.Text())
	l, err := m.lock(ctx, name+fetchSuffix, unix.LOCK_EX) // so that no one else removes it
	if err != nil {
		return "", err
	}
	defer func() {
		unlock(l)
		_ = m.remove(name) // else it goes as any other does
	}()
	if s.Commit, err = m.fetchLocked(ctx, name, s); err != nil {
		return "", err
	}
	has, err := m.unpackShared(ctx, name, s.Commit, to, uid, gid)
	if !has && err == nil {
		err = lost(s)
	}
	return s.Commit, err
}

// mirrorName returns the name of a repository's mirror, without suffix.
func mirrorName(repository string) string {
	sum := sha256.Sum256([]byte(strings.TrimSuffix(strings.TrimSuffix(repository, "/"), ".git")))
	return hex.EncodeToString(sum[:16])
}

func (m Mirrors) path(name string) string { return filepath.Join(m.Dir, name+gitSuffix) }

// unpackShared unpacks the commit while no one removes the mirror. It reports whether the mirror has
// the commit.
func (m Mirrors) unpackShared(ctx context.Context, name, hash string, to *os.Root, uid, gid int) (has bool, err error) {
	l, err := m.lock(ctx, name+lockSuffix, unix.LOCK_SH)
	if err != nil {
		return false, err
	}
	defer unlock(l)
	dir := m.path(name)
	if _, err := m.git(ctx, dir, "cat-file", "-e", hash+"^{commit}"); err != nil {
		return false, ctx.Err()
	}
	err = m.unpack(ctx, dir, hash, to, uid, gid)
	if _, failed := errors.AsType[*gitError](err); (failed || errors.Is(err, errDamaged)) && ctx.Err() == nil {
		// A fetch checks what it gets, so the mirror is damaged. The next job makes it again.
		unlock(l)
		if err2 := m.remove(name); !errors.Is(err2, errBusy) {
			err = errors.Join(err, err2)
		}
	}
	return true, err
}

// fetchWait is how long a fetch waits for another one of the same repository, which may bring the same commit.
const fetchWait = 10 * time.Second

// fetch fetches the commit and returns its hash. The error is errBusy if another fetch takes long.
func (m Mirrors) fetch(ctx context.Context, name string, s Source) (string, error) {
	waiting, cancel := context.WithTimeout(ctx, cmp.Or(m.limits.wait, fetchWait))
	defer cancel()
	l, err := m.lock(waiting, name+fetchSuffix, unix.LOCK_EX)
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		err = errBusy
	}
	if err != nil {
		return "", err
	}
	defer unlock(l)
	return m.fetchLocked(ctx, name, s)
}

// fetchLocked is fetch for who has the lock.
func (m Mirrors) fetchLocked(ctx context.Context, name string, s Source) (string, error) {
	dir := m.path(name)
	want, ours := s.Commit, "refs/kbnode/"+s.Commit
	if !hashForm.MatchString(s.Commit) {
		if want == "HEAD" {
			want = s.Branch
		}
		ours = "refs/kbnode/latest"
	} else if _, err := m.git(ctx, dir, "cat-file", "-e", want+"^{commit}"); err == nil {
		return want, nil // another slot fetched it meanwhile
	}
	room, err := m.prepare(ctx, name)
	if err != nil {
		return "", err
	}
	use, err := m.lock(ctx, name+lockSuffix, unix.LOCK_SH)
	if err != nil {
		return "", err
	}
	defer unlock(use)
	fetch := func(name string) error { return m.fetchInto(ctx, name, room, s.Repository, "+"+want+":"+ours) }
	err = fetch(name)
	if packs, _ := packsOf(dir); packs > 0 && mirrorMayFail(ctx, err, s.Repository) {
		unlock(use)
		err = m.renew(ctx, name, fetch)
	}
	if err != nil {
		return "", explain(ctx, err, s.Repository, want)
	}
	out, err := m.git(ctx, dir, "rev-parse", "--verify", "--end-of-options", ours+"^{commit}")
	if hash := strings.TrimSpace(string(out)); err == nil && hashForm.MatchString(hash) {
		return hash, nil
	}
	if ctx.Err() != nil {
		return "", err
	}
	return "", notFound(s.Repository, want)
}

// fetchInto runs git fetch, which may write at most room bytes.
func (m Mirrors) fetchInto(ctx context.Context, name string, room int64, repository, refspec string) error {
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	m.most = min(maxPack, room)
	had := packFiles(m.path(name))
	_, err := m.git(ctx, m.path(name), "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head", "--depth=1", "--", repository, refspec)
	if err == nil {
		return nil
	}
	switch {
	case m.reached(name) && room < maxPack:
		err = fmt.Errorf("%w: %s has room for %s only", errDiskFull, m.Dir, text.Bytes(room))
	case m.reached(name):
		err = refuse("the commit of %.200s has more than %s; keep large files elsewhere", repository, text.Bytes(maxPack))
	}
	return errors.Join(err, m.sweep(name, had))
}

// prepare makes the mirror, or makes it again if it is empty, damaged or too large. It returns how many
// bytes may be fetched.
func (m Mirrors) prepare(ctx context.Context, name string) (room int64, err error) {
	share, err := m.makeRoom(name)
	if err == nil {
		err = m.removeSpare(name) // of a process that was killed
	}
	if err != nil {
		return 0, err
	}
	packs, bytes := packsOf(m.path(name))
	_, err = m.git(ctx, m.path(name), "rev-parse", "--is-bare-repository")
	if err != nil && ctx.Err() != nil {
		return 0, err
	}
	if err != nil || packs == 0 || packs > maxPacks || bytes > max(share, 0) {
		if err := m.makeMirror(ctx, name); err != nil {
			return 0, err
		}
	}
	room, err = host.Room(m.Dir)
	room /= atOnce
	if err == nil && room <= 0 {
		err = fmt.Errorf("%w: less than the reserve of %s is free; make room on it", errDiskFull, m.Dir)
	}
	return room, errors.Join(err, m.sweep(name, slices.DeleteFunc(packFiles(m.path(name)), isTemporary)))
}
