package guard

import (
	"context"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// testDisk returns a slot's disk in a directory. It records its mounts instead of making them.
func testDisk(t *testing.T) (*slotDisk, *[][2]string) {
	t.Helper()
	dir := t.TempDir()
	var mounts [][2]string
	d := &slotDisk{dir: dir, log: slog.New(slog.DiscardHandler), statfs: unix.Statfs}
	d.bind = func(source, target string) error { mounts = append(mounts, [2]string{source, target}); return nil }
	for _, name := range []string{"containers/x", "home/builds/y"} {
		must.Do(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	return d, &mounts
}

func TestDiskPrepare(t *testing.T) {
	t.Parallel()
	request := func() *container.CreateRequest {
		return &container.CreateRequest{Config: &container.Config{Image: "img", Labels: map[string]string{}}, HostConfig: &container.HostConfig{}}
	}
	for name, row := range map[string]struct {
		change  func(*container.CreateRequest)
		volumes []string
		want    string // targets on the disk, or the refusal
	}{
		"plain":               {func(*container.CreateRequest) {}, nil, ""},
		"volumes":             {func(*container.CreateRequest) {}, []string{"/data", "/var/lib/db/"}, "/data /var/lib/db"},
		"the job's own mount": {func(r *container.CreateRequest) { r.HostConfig.Mounts = []mount.Mount{{Target: "/data"}} }, []string{"/data"}, ""},
		"a tmpfs there":       {func(r *container.CreateRequest) { r.HostConfig.Tmpfs = map[string]string{"/data": ""} }, []string{"/data"}, ""},
		"a volume over /":     {func(*container.CreateRequest) {}, []string{"/"}, "over the container's root"},
		"a volume over proc":  {func(*container.CreateRequest) {}, []string{"/proc/x"}, "cannot mount over /proc"},
		"a relative volume":   {func(*container.CreateRequest) {}, []string{"a/b"}, "is not an absolute path"},
		"too many":            {func(*container.CreateRequest) {}, strings.Fields(strings.Repeat("/v ", 65)), "more than 64 volumes"},
	} {
		d, _ := testDisk(t)
		r := request()
		row.change(r)
		before := len(r.HostConfig.Mounts)
		top := t.TempDir()
		err := d.prepare(r, row.volumes, top)
		got := ""
		if err != nil {
			got = err.Error()
		}
		for _, m := range r.HostConfig.Mounts[before:] {
			if err == nil {
				got += m.Target + " "
			}
			if filepath.Dir(m.Source) != top || m.Type != mount.TypeBind {
				t.Errorf("%s: %+v", name, m)
			}
			if _, err := os.Lstat(m.Source); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err == nil && strings.TrimSpace(got) != row.want || err != nil && !strings.Contains(got, row.want) {
			t.Errorf("%s: %q, want %q", name, got, row.want)
		}
	}
}

// TestDiscardDeepTree removes deeply nested directories, of which only a few may be open at a
// time.
func TestDiscardDeepTree(t *testing.T) {
	var limit unix.Rlimit
	must.Do(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	d, _ := testDisk(t)
	path := filepath.Join(d.dir, "home/builds/deep")
	must.Do(t, os.Mkdir(path, 0o700))
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	for range 3000 {
		if err == nil {
			err = unix.Mkdirat(fd, "d", 0o700)
		}
		below := -1
		if err == nil {
			below, err = unix.Openat(fd, "d", unix.O_RDONLY|unix.O_DIRECTORY, 0)
		}
		_ = unix.Close(fd)
		fd = below
	}
	must.Do(t, err)
	_ = unix.Close(fd)
	// Not parallel: the limit applies to the whole process.
	must.Do(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 256, Max: limit.Max}))
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &limit) }()
	must.Do(t, d.tidy(t.Context()))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		left, err := os.ReadDir(filepath.Join(d.dir, "trash"))
		if err == nil && len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("left in the trash: %d, %v", len(left), err)
		}
	}
}

// TestTidy removes what jobs and an earlier kbnode left, also where nothing can be moved away.
func TestTidy(t *testing.T) {
	t.Parallel()
	for _, trash := range []string{"x", "trash"} {
		d, _ := testDisk(t)
		must.Do(t, os.WriteFile(filepath.Join(d.dir, trash), nil, 0o600))
		must.Do(t, d.tidy(t.Context()))
		for _, dir := range []string{"containers", "home/builds", "trash"} {
			until(t, dir+" to be empty", func() bool { left, _ := os.ReadDir(filepath.Join(d.dir, dir)); return len(left) == 0 })
		}
		if _, err := os.Stat(filepath.Join(d.dir, "home/builds")); err != nil {
			t.Error(err)
		}
	}
}

// TestFullDisk: the next job finds room on a disk that is nearly full, but does not wait for that otherwise.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	for name, free := range map[string][2]uint64{"room enough": {26, 26}, "no blocks": {25, 100}, "no inodes": {100, 25}} {
		d, _ := testDisk(t)
		d.statfs = func(_ string, st *unix.Statfs_t) error {
			st.Blocks, st.Files, st.Bavail, st.Ffree = 100, 100, free[0], free[1]
			return nil
		}
		d.deleting.Add(1)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		if err := d.tidy(ctx); (err == nil) != (name == "room enough") {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
		d.deleting.Add(-1)
		if err := d.tidy(t.Context()); err != nil {
			t.Errorf("%s, when all is deleted: %v", name, err)
		}
	}
}

func TestCover(t *testing.T) {
	t.Parallel()
	d, mounts := testDisk(t)
	layer := filepath.Join(t.TempDir(), "overlay2", "0abc")
	for _, dir := range []string{"diff/work/dir", "work/work"} {
		must.Do(t, os.MkdirAll(filepath.Join(layer, dir), 0o755))
	}
	for name, text := range map[string]string{"lower": "l/X:l/Y", "link": "XYZ"} {
		must.Do(t, os.WriteFile(filepath.Join(layer, name), []byte(text), 0o644))
	}
	must.Do(t, os.Chmod(filepath.Join(layer, "diff/work/dir"), fs.ModeSticky|0o777))
	own := filepath.Join(t.TempDir(), "layer")
	must.Do(t, d.cover(layer, own))
	must.Equal(t, [][2]string{{own, layer}}, *mounts)
	var got []string
	err := filepath.WalkDir(own, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := e.Info()
		rel, _ := filepath.Rel(own, path)
		got = append(got, info.Mode().String()+" "+rel)
		return err
	})
	must.Do(t, err)
	info, err := os.Stat(layer)
	must.Do(t, err)
	want := []string{
		info.Mode().String() + " .", "drwxr-xr-x diff", "drwxr-xr-x diff/work", "dtrwxrwxrwx diff/work/dir",
		"-rw-r--r-- link", "-rw-r--r-- lower", "drwxr-xr-x work", "drwxr-xr-x work/work",
	}
	must.Equal(t, want, got)
}
