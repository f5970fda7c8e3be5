// Package checkout gives a job the files of one commit. It fetches a repository into a mirror on
// the node, which all slots share, and unpacks the commit into an empty directory. Nothing that a
// repository contains makes git or kbnode run anything: there is no working tree, and hooks,
// filters, attributes, submodules and LFS do not act.
package checkout

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/disk"
	"github.com/gpu-mode/kbnode/internal/limit"
)

// Mirrors that exceed one of these are made again: git's own garbage collection would compete with
// jobs for longer than a fetch does. They are in /run, so they count as the service's memory, also
// when git or the service has ended.
const (
	maxMirrors = 64
	maxPacks   = 500       // of all mirrors
	maxPack    = 256 << 20 // bytes of all packs, and of one that is fetched
)

// Source names one commit, as a valid job does (package job).
type Source struct {
	Repository string // its HTTPS address
	// Commit is a full hash, or HEAD for the last one of Branch, which Buildkite does not know yet.
	Commit string
	Branch string
}

// Mirrors are the node's mirrors of repositories.
type Mirrors struct {
	Dir string // root's, with one directory for each repository
	// UID and GID are of the user that runs git and owns the repositories' directories. It has
	// nothing else. Zero is the caller, as in tests.
	UID, GID int
	Limits   Limits

	system string // in place of /etc/gitconfig
}

// NotFoundError means that the repository does not have the commit.
type NotFoundError struct{ Repository, Commit string }

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("%.200s has no commit, branch or tag %.80q; push it, or start the build at another one", e.Repository, e.Commit)
}

var hashForm = regexp.MustCompile(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Checkout fetches the commit unless the mirror has it, unpacks it into the empty directory to, and
// returns its hash. The files belong to uid and gid. A *NotFoundError is the build's fault, and
// every other error may be the network's.
func (m Mirrors) Checkout(ctx context.Context, s Source, to *os.Root, uid, gid int) (hash string, err error) {
	dir := filepath.Join(m.Dir, dirName(s.Repository))
	for fetched := false; ; fetched = true {
		if hashForm.MatchString(s.Commit) {
			has, err := m.unpackShared(ctx, dir, s.Commit, func() error { return m.unpack(ctx, dir, s.Commit, to, uid, gid) })
			if has || err != nil {
				return s.Commit, err
			}
		}
		if fetched {
			return "", fmt.Errorf("the mirror of %s lost commit %s; start the job again", s.Repository, s.Commit)
		}
		if s.Commit, err = m.fetch(ctx, dir, s); err != nil {
			return "", err
		}
	}
}

func dirName(repository string) string {
	sum := sha256.Sum256([]byte(strings.TrimSuffix(strings.TrimSuffix(repository, "/"), ".git")))
	return hex.EncodeToString(sum[:16]) + ".git"
}

// unpackShared calls unpack while no one changes the mirror. It reports whether the mirror has the
// commit.
func (m Mirrors) unpackShared(ctx context.Context, dir, hash string, unpack func() error) (has bool, err error) {
	unlock, err := lock(ctx, dir, unix.LOCK_SH)
	if err != nil {
		return false, err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, "HEAD")); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if _, err := m.git(ctx, dir, "cat-file", "-e", hash+"^{commit}"); err != nil {
		return false, ctx.Err()
	}
	return true, unpack()
}

// fetch fetches the commit and returns its hash.
func (m Mirrors) fetch(ctx context.Context, dir string, s Source) (string, error) {
	unlock, err := lock(ctx, dir, unix.LOCK_EX)
	if err != nil {
		return "", err
	}
	defer unlock()
	want, ours := s.Commit, "refs/kbnode/"+s.Commit
	if !hashForm.MatchString(s.Commit) {
		if want == "HEAD" {
			want = s.Branch
		}
		ours = "refs/kbnode/latest"
	} else if _, err := m.git(ctx, dir, "cat-file", "-e", want+"^{commit}"); err == nil {
		return want, nil // another slot fetched it meanwhile
	}
	if err := m.prepare(ctx, dir); err != nil {
		return "", err
	}
	if _, err = m.git(ctx, dir, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--no-write-fetch-head",
		"--depth=1", "--", s.Repository, "+"+want+":"+ours); err != nil {
		if failed, ok := errors.AsType[*gitError](err); ok && failed.absent() {
			return "", &NotFoundError{s.Repository, want}
		}
		return "", fmt.Errorf("fetch %s: %w", s.Repository, err)
	}
	out, err := m.git(ctx, dir, "rev-parse", "--verify", "--end-of-options", ours+"^{commit}")
	if hash := strings.TrimSpace(string(out)); err == nil && hashForm.MatchString(hash) {
		return hash, nil
	}
	return "", errors.Join(&NotFoundError{s.Repository, want}, err)
}

// prepare makes the mirror's directory, or makes it again if it is damaged. Where the mirrors have
// become too large, it removes all that no one uses.
func (m Mirrors) prepare(ctx context.Context, dir string) error {
	all, err := m.crowded()
	if err != nil {
		return fmt.Errorf("make a mirror: %w", err)
	}
	if len(all) == 0 {
		if _, err := m.git(ctx, dir, "rev-parse", "--is-bare-repository"); err == nil {
			return nil
		}
	}
	root, err := os.OpenRoot(m.Dir)
	if err != nil {
		return fmt.Errorf("make a mirror: %w", err)
	}
	defer func() { _ = root.Close() }()
	name := filepath.Base(dir)
	err = disk.RemoveTree(root, name)
	for _, other := range all {
		brief, cancel := context.WithTimeout(ctx, lockPoll)
		if unlock, busy := lock(brief, other, unix.LOCK_EX); busy == nil {
			err = errors.Join(err, disk.RemoveTree(root, filepath.Base(other)))
			unlock()
		}
		cancel()
	}
	if err == nil {
		err = root.Mkdir(name, 0o700)
	}
	if err == nil && m.UID != 0 {
		err = root.Lchown(name, m.UID, m.GID)
	}
	if err == nil {
		_, err = m.git(ctx, dir, "init", "--quiet", "--bare", "--template=", "--", ".")
	}
	if err != nil {
		return fmt.Errorf("make a mirror: %w", err)
	}
	return nil
}

// crowded returns the directories of all mirrors if there are too many or they are too large.
func (m Mirrors) crowded() ([]string, error) {
	all, err1 := filepath.Glob(filepath.Join(m.Dir, "*.git"))
	packs, err2 := filepath.Glob(filepath.Join(m.Dir, "*.git", "objects", "pack", "*"))
	var size int64
	for _, pack := range packs {
		if info, err := os.Lstat(pack); err == nil {
			size += info.Size()
		}
	}
	if len(all) <= maxMirrors && len(packs) <= 2*maxPacks && size <= cmp.Or(m.Limits.Packs, maxPack) {
		all = nil
	}
	return all, errors.Join(err1, err2)
}

// lockPoll is the time between two tries to lock a mirror.
const lockPoll = 20 * time.Millisecond

// lock waits for a lock on a mirror. It is one of 256 files beside the mirrors, out of reach of git's
// user, and ends with its holder.
func lock(ctx context.Context, dir string, how int) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(dir), filepath.Base(dir)[:2]+".lock"), os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock a mirror: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		if err == nil {
			return func() { _ = f.Close() }, nil
		}
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = limit.Sleep(ctx, lockPoll)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("lock a mirror: %w", err), f.Close())
		}
	}
}
