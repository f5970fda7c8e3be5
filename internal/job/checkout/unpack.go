package checkout

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// limits bound what one commit unpacks to, all mirrors in bytes, and a wait for another fetch. Zero means the default.
type limits struct {
	files   int
	bytes   int64
	mirrors int64
	wait    time.Duration
}

const (
	defaultFiles = 200_000
	defaultBytes = 4 << 30  // bytes
	maxPath      = 1024     // bytes
	maxDepth     = 64       // directories
	maxName      = 255      // bytes of a step
	maxPaths     = 32 << 20 // bytes of all paths
	maxTarget    = 1024     // bytes of a link's target
)

// errDamaged means that a mirror has not what a fetch has checked.
var errDamaged = errors.New("the mirror is damaged")

// file is an entry of a tree.
type file struct {
	mode string // "100644", "100755", "120000" for a link, "160000" for a submodule
	hash string
	path string
}

// unpack writes a commit's files to an empty directory. Attributes do not act, as they would in
// git archive: each file is written as it was committed. A submodule is an empty directory.
func (m Mirrors) unpack(ctx context.Context, dir, commit string, to *os.Root, uid, gid int) error {
	ctx, cancel := context.WithTimeout(ctx, gitTime)
	defer cancel()
	files, err := m.tree(ctx, dir, commit)
	if err != nil {
		return fmt.Errorf("list the files of %s: %w", commit, err)
	}
	most, err := diskSize(to)
	if err != nil {
		return err
	}
	most = min(most, cmp.Or(m.limits.bytes, defaultBytes))
	w := &writer{to: to, uid: uid, gid: gid, most: most, left: most, dirs: map[string]bool{".": true}}
	cmd := m.command(ctx, dir, "cat-file", "--batch", "--buffer")
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := start(cmd, maxOutput); err != nil {
		return err
	}
	written := make(chan error, 1)
	go func() {
		ask := bufio.NewWriter(in)
		for _, f := range files {
			if f.mode != "160000" {
				_, _ = ask.WriteString(f.hash + "\n") // Flush returns its error
			}
		}
		written <- errors.Join(ask.Flush(), in.Close())
	}()
	err = w.all(files, bufio.NewReaderSize(out, 1<<16))
	ended := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if err != nil && !ended {
		cancel() // it may have more to say
	}
	err2 := wait(ctx, cmd)
	err3 := <-written
	if err == nil || ended && err2 != nil {
		err = cmp.Or(err2, err3)
	}
	if err != nil {
		return fmt.Errorf("unpack %s: %w", commit, err)
	}
	return nil
}

// diskSize returns the size of the disk of a directory, in bytes: no later try has more.
func diskSize(dir *os.Root) (int64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir.Name(), &st); err != nil {
		return 0, fmt.Errorf("look at the disk of %s: %w", dir.Name(), err)
	}
	if st.Blocks == 0 { // it does not say
		return math.MaxInt64, nil
	}
	return int64(st.Blocks) * st.Bsize, nil
}

// tree lists a commit's files.
func (m Mirrors) tree(ctx context.Context, dir, commit string) ([]file, error) {
	cmd := m.command(ctx, dir, "ls-tree", "-r", "-t", "-z", "--full-tree", commit)
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := start(cmd, maxOutput); err != nil {
		return nil, err
	}
	files, err := readTree(out, cmp.Or(m.limits.files, defaultFiles))
	if err != nil {
		_ = cmd.Cancel() // Wait reports that it ended
		_ = cmd.Wait()
		return nil, err
	}
	return files, wait(ctx, cmd)
}

func readTree(r io.Reader, most int) (files []file, err error) {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, maxPath+256)
	scanner.Split(func(data []byte, atEOF bool) (int, []byte, error) {
		if i := bytes.IndexByte(data, 0); i >= 0 {
			return i + 1, data[:i], nil
		}
		if atEOF && len(data) > 0 {
			return 0, nil, io.ErrUnexpectedEOF
		}
		return 0, nil, nil
	})
	var n, paths int
	for scanner.Scan() {
		n++
		if n > most {
			return nil, refuse("the commit has more than %d files and directories; keep large numbers of files elsewhere", most)
		}
		head, name, ok := strings.Cut(scanner.Text(), "\t")
		fields := strings.Fields(head)
		if !ok || len(fields) != 3 {
			return nil, fmt.Errorf("%w: git lists %.80q", errDamaged, scanner.Text())
		}
		if err := checkPath(name); err != nil {
			return nil, err
		}
		if fields[1] == "tree" {
			continue // directories are made for files only
		}
		paths += len(name)
		if paths > maxPaths {
			return nil, refuse("the paths of the commit's files have more than %d bytes; shorten them", maxPaths)
		}
		files = append(files, file{fields[0], fields[2], name})
	}
	if errors.Is(scanner.Err(), bufio.ErrTooLong) {
		return nil, refuse("the commit has a path of more than %d bytes; rename the file", maxPath)
	}
	return files, scanner.Err()
}

// checkPath refuses the path of a file that is not plainly below the directory.
func checkPath(name string) error {
	if !utf8.ValidString(name) {
		return refuse("the commit has a file %.80q; rename it to UTF-8", name)
	}
	if len(name) > maxPath || strings.Count(name, "/") >= maxDepth || !fs.ValidPath(name) || name == "." {
		return refuse("the commit has a file %.80q; use paths of at most %d bytes and %d directories", name, maxPath, maxDepth)
	}
	for step := range strings.SplitSeq(name, "/") {
		if strings.EqualFold(step, ".git") {
			return refuse("the commit has a file %.80q; .git is git's own", name)
		}
		if len(step) > maxName || strings.Contains(step, "\x00") {
			return refuse("the commit has a file %.80q; use names of at most %d bytes", name, maxName)
		}
	}
	return nil
}

// writer writes the files of a tree.
type writer struct {
	to       *os.Root
	uid, gid int
	most     int64 // bytes
	left     int64 // of them
	dirs     map[string]bool
}

func (w *writer) all(files []file, blobs *bufio.Reader) error {
	for _, f := range files {
		if err := w.mkdir(path.Dir(f.path)); err != nil {
			return clash(err)
		}
		if f.mode == "160000" {
			if err := w.mkdir(f.path); err != nil {
				return clash(err)
			}
			continue
		}
		size, err := header(blobs, f.hash)
		if err != nil {
			return err
		}
		w.left -= size
		if w.left < 0 {
			return refuse("the files of the commit have more than %s, too large for a checkout; keep large files elsewhere", text.Bytes(w.most))
		}
		if err := w.write(f, io.LimitReader(blobs, size), size); err != nil {
			return clash(fmt.Errorf("write %.80q: %w", f.path, err))
		}
		if _, err := blobs.ReadByte(); err != nil { // the line break after it
			return err
		}
	}
	return nil
}

// clash refuses a commit that has two files in one place.
func clash(err error) error {
	if errors.Is(err, fs.ErrExist) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return refuse("the commit has two files of one name: %v; run git fsck in the repository", err)
	}
	return err
}

// header reads what git says about the next file, and returns the file's size in bytes.
func header(blobs *bufio.Reader, hash string) (int64, error) {
	line, err := blobs.ReadSlice('\n')
	if err != nil {
		return 0, fmt.Errorf("git ended before file %s: %w", hash, err)
	}
	fields := strings.Fields(string(line))
	if len(fields) != 3 || fields[0] != hash || fields[1] != "blob" {
		return 0, fmt.Errorf("%w: git says %.80q of file %s", errDamaged, string(line), hash)
	}
	size, err := strconv.ParseUint(fields[2], 10, 63)
	return int64(size), err
}

// write writes one file. size is what blob must have.
func (w *writer) write(f file, blob io.Reader, size int64) error {
	switch f.mode {
	case "120000":
		if size > maxTarget {
			return refuse("the target of link %.80q has more than %d bytes; shorten it", f.path, maxTarget)
		}
		target := make([]byte, size)
		if _, err := io.ReadFull(blob, target); err != nil {
			return err
		}
		if size == 0 || bytes.IndexByte(target, 0) >= 0 {
			return refuse("link %.80q has no target; remove it", f.path)
		}
		if err := w.to.Symlink(string(target), f.path); err != nil {
			return err
		}
		return w.own(f.path)
	case "100644", "100755", "100664":
	default:
		return refuse("the commit has a file %.80q of mode %.20q; run git fsck in the repository", f.path, f.mode)
	}
	mode := fs.FileMode(0o644)
	if f.mode == "100755" {
		mode = 0o755
	}
	file, err := w.to.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	n, err := io.Copy(file, blob)
	if err == nil && n != size {
		err = io.ErrUnexpectedEOF
	}
	if w.uid != 0 || w.gid != 0 {
		err = errors.Join(err, file.Chown(w.uid, w.gid))
	}
	return errors.Join(err, file.Chmod(mode), file.Close())
}

// mkdir makes a directory and those above it.
func (w *writer) mkdir(dir string) error {
	if w.dirs[dir] {
		return nil
	}
	if err := w.mkdir(path.Dir(dir)); err != nil {
		return err
	}
	w.dirs[dir] = true
	if err := w.to.Mkdir(dir, 0o755); err != nil {
		return err
	}
	return w.own(dir)
}

func (w *writer) own(name string) error {
	if w.uid == 0 && w.gid == 0 {
		return nil
	}
	return w.to.Lchown(name, w.uid, w.gid)
}
