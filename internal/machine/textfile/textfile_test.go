package textfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

const text = "# TYPE kbnode_up gauge\nkbnode_up 1\n"

// place is a machine below Root with a directory for metrics, and a file that none may touch.
type place struct {
	*testing.T
	root, dir, secret string
}

const metricsDir = "/srv/metrics"

func newPlace(t *testing.T) place {
	t.Helper()
	p := place{T: t, root: t.TempDir()}
	p.secret, p.dir = must.Write(t, p.root, "etc/shadow", "secret"), filepath.Join(p.root, metricsDir)
	must.Do(t, os.MkdirAll(p.dir, 0o755))
	must.Do(t, os.MkdirAll(filepath.Join(p.root, filepath.Dir(RecordPath)), 0o755))
	return p
}

func (p place) file() string { return filepath.Join(p.dir, Name) }

func (p place) names(dir string) string {
	p.Helper()
	entries, err := os.ReadDir(dir)
	must.Do(p, err)
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return strings.Join(all, " ")
}

// TestHostileDirectory has all that someone may put into the directory, or in place of it, who can write there: the file is
// written or refused, and nothing else is touched.
func TestHostileDirectory(t *testing.T) {
	t.Parallel()
	temp := func(p place) string { return filepath.Join(p.dir, tempName) }
	move := func(p place) string {
		must.Do(p, os.Rename(p.dir, p.dir+".real"))
		return p.dir + ".real"
	}
	for name, row := range map[string]struct {
		do  func(p place)
		err string // of Write; "" is none
	}{
		"nothing":                     {func(place) {}, ""},
		"a file of before":            {func(p place) { must.Write(p, p.root, metricsDir+"/"+Name, "old") }, ""},
		"what a killed daemon leaves": {func(p place) { must.Write(p, p.root, metricsDir+"/"+tempName, "half") }, ""},
		"a link for the file":         {func(p place) { must.Do(p, os.Symlink(p.secret, p.file())) }, ""},
		"a link to nothing":           {func(p place) { must.Do(p, os.Symlink(p.root+"/etc/cron.d", p.file())) }, ""},
		"a second name for the file":  {func(p place) { must.Do(p, os.Link(p.secret, p.file())) }, ""},
		"a link for the new file":     {func(p place) { must.Do(p, os.Symlink(p.secret, temp(p))) }, ""},
		"a second name for the new":   {func(p place) { must.Do(p, os.Link(p.secret, temp(p))) }, ""},
		"a pipe for the file":         {func(p place) { must.Do(p, unix.Mkfifo(p.file(), 0o666)) }, ""},
		"a pipe for the new file":     {func(p place) { must.Do(p, unix.Mkfifo(temp(p), 0o666)) }, ""},
		"a directory for the file":    {func(p place) { must.Do(p, os.MkdirAll(p.file()+"/x", 0o755)) }, "is a directory"},
		"a directory for the new":     {func(p place) { must.Do(p, os.MkdirAll(temp(p)+"/x", 0o755)) }, tempName + " is a directory; remove it"},
		"a link for the directory":    {func(p place) { must.Do(p, os.Symlink(move(p), p.dir)) }, "a symbolic link leads to the directory; write what readlink -f /srv/metrics prints"},
		"a link on the way": {func(p place) {
			must.Do(p, os.Rename(p.root+"/srv", p.root+"/data"))
			must.Do(p, os.Symlink("data", p.root+"/srv"))
		}, "a symbolic link leads to the directory"},
		"a magic link":             {func(p place) { move(p); must.Do(p, os.Symlink("/proc/self/cwd", p.dir)) }, "a symbolic link"},
		"no directory":             {func(p place) { move(p) }, "there is no such directory; write that of node_exporter's --collector.textfile.directory"},
		"a file for the directory": {func(p place) { move(p); must.Write(p, p.root, metricsDir, "") }, "there is no such directory"},
		"everyone may write":       {func(p place) { must.Do(p, os.Chmod(p.dir, 0o777)) }, "everyone may replace files in the directory; type sudo chmod o-w /srv/metrics"},
		"everyone may add files":   {func(p place) { must.Do(p, os.Chmod(p.dir, 0o777|os.ModeSticky)) }, ""},
		"a group may write":        {func(p place) { must.Do(p, os.Chmod(p.dir, 0o775|os.ModeSetgid)) }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			row.do(p)
			must.Err(t, Write(p.root, metricsDir, []byte(text)), row.err)
			must.Equal(t, "secret", must.Read(t, p.secret))
			must.Equal(t, "shadow", p.names(p.root+"/etc"))
			if info, err := os.Stat(p.secret); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("the secret is %v, %v", info, err)
			}
			if row.err == "" {
				info, err := os.Lstat(p.file())
				must.Do(t, err)
				if must.Read(t, p.file()) != text || info.Mode() != 0o644 || p.names(p.dir) != Name {
					t.Errorf("%s with %s beside %s", info.Mode(), must.Read(t, p.file()), p.names(p.dir))
				}
			}
			// Only a directory in the way, and another place, keep it from being removed.
			away := row.err == "" || strings.Contains(row.err, "no such directory") || strings.Contains(row.err, "everyone")
			if err := Remove(p.root, metricsDir); (err == nil) != away {
				t.Errorf("remove: %v", err)
			}
			must.Equal(t, "secret", must.Read(t, p.secret))
			if row.err == "" {
				must.Equal(t, "", p.names(p.dir))
			}
		})
	}
}

// TestFullDisk keeps the old file, and leaves nothing of the new one.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	must.Root(t, "only root mounts")
	p := newPlace(t)
	if err := unix.Mount("none", p.dir, "tmpfs", 0, "size=8k,mode=755"); err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(p.dir, unix.MNT_DETACH) })
	must.Do(t, Write(p.root, metricsDir, []byte(text)))
	must.Err(t, Write(p.root, metricsDir, make([]byte, 1<<20)), "no space left on device")
	must.Equal(t, text, must.Read(t, p.file()))
	must.Equal(t, Name, p.names(p.dir))
	must.Do(t, unix.Mount("none", p.dir, "tmpfs", unix.MS_REMOUNT|unix.MS_RDONLY, ""))
	must.Err(t, Write(p.root, metricsDir, []byte(text)), "read-only file system")
	must.Err(t, Remove(p.root, metricsDir), "read-only file system")
}

func TestCheck(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	const minute = time.Minute
	for name, row := range map[string]struct {
		age, runs time.Duration // of the file, 0 if there is none, and of the daemon
		want      string
	}{
		"fresh":                         {minute, time.Hour, ""},
		"from the future":               {-time.Hour, time.Hour, ""},
		"a long pass":                   {14 * minute, time.Hour, ""},
		"old":                           {16 * minute, time.Hour, "/srv/metrics/kbnode.prom is from 2026-11-21T11:44:00Z; see sudo journalctl -u kbnode"},
		"of the daemon before":          {16 * minute, minute, ""},
		"missing":                       {0, time.Hour, "/srv/metrics/kbnode.prom is missing; see sudo journalctl -u kbnode"},
		"missing, the daemon is new":    {0, minute, ""},
		"missing, its start is unknown": {0, now.Sub(time.Time{}), "is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newPlace(t)
			if row.age != 0 {
				must.Write(t, p.root, metricsDir+"/"+Name, text)
				must.Do(t, os.Chtimes(p.file(), now, now.Add(-row.age)))
			}
			must.Err(t, Check(p.root, metricsDir, now.Add(-row.runs), now), row.want)
		})
	}
	p := newPlace(t)
	must.Err(t, Check(p.root, "/srv/other", now, now), "no metrics for node_exporter in /srv/other: there is no such directory; write that of")
}

// TestKeeper follows the configuration over restarts: there is one file at most, and none is forgotten.
func TestKeeper(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	record := filepath.Join(p.root, RecordPath)
	keep := func(k *Keeper, dir, err string, files ...string) {
		t.Helper()
		must.Err(t, k.Keep(dir, []byte(text)), err)
		var got []string
		for _, d := range []string{"/srv/a", "/srv/b", "/srv/c"} {
			if _, err := os.Stat(filepath.Join(p.root, d, Name)); err == nil {
				got = append(got, d)
			}
		}
		must.Equal(t, files, got)
	}
	for _, d := range []string{"/srv/a", "/srv/b"} {
		must.Do(t, os.MkdirAll(p.root+d, 0o755))
	}
	k := &Keeper{Root: p.root}
	keep(k, "", "")
	keep(k, "/srv/a", "", "/srv/a")
	info, err := os.Stat(record)
	must.Do(t, err)
	keep(k, "/srv/a", "", "/srv/a")
	if again, err := os.Stat(record); err != nil || !os.SameFile(info, again) {
		t.Errorf("the record is written again: %v", err)
	}
	keep(k, "/srv/b", "", "/srv/b")
	k = &Keeper{Root: p.root} // the one before was killed
	keep(k, "/srv/a", "", "/srv/a")
	k = &Keeper{Root: p.root}
	keep(k, "", "")
	must.Equal(t, "", p.names(filepath.Dir(record)))

	// What cannot be removed is, when it can.
	keep(k, "/srv/a", "", "/srv/a")
	must.Do(t, os.MkdirAll(p.root+"/srv/a/"+tempName, 0o755))
	for range 2 {
		keep(k, "/srv/b", "is a directory; remove it", "/srv/b")
		must.Equal(t, `["/srv/a","/srv/b"]`+"\n", must.Read(t, record))
	}
	k = &Keeper{Root: p.root}
	keep(k, "", "is a directory; remove it")
	must.Equal(t, `["/srv/a"]`+"\n", must.Read(t, record))
	must.Do(t, os.Remove(p.root+"/srv/a/"+tempName))
	keep(k, "", "")
	must.Equal(t, "", p.names(filepath.Dir(record)))

	// A directory that comes late, or goes.
	keep(k, "/srv/c", "there is no such directory")
	must.Do(t, os.MkdirAll(p.root+"/srv/c", 0o755))
	keep(k, "/srv/c", "", "/srv/c")
	must.Do(t, os.RemoveAll(p.root+"/srv/c"))
	keep(k, "/srv/c", "there is no such directory")
	keep(k, "", "")

	// Its file system may only not be mounted, with the file on it.
	must.Equal(t, `["/srv/c"]`+"\n", must.Read(t, record))
	must.Write(t, p.root, "/srv/c/"+Name, text)
	k = &Keeper{Root: p.root}
	keep(k, "", "")
	must.Equal(t, "", p.names(filepath.Dir(record)))

	// A record that cannot be read is not replaced, and read later.
	must.Do(t, os.WriteFile(record, []byte(`["/srv/b"]`), 0o600))
	must.Write(t, p.root, "/srv/b/"+Name, text)
	must.Do(t, os.Rename(record, record+".real"))
	must.Do(t, os.Mkdir(record, 0o755))
	k = &Keeper{Root: p.root}
	keep(k, "/srv/a", "read /var/lib/kbnode/textfile.json: ", "/srv/a", "/srv/b")
	must.Do(t, os.Remove(record))
	must.Do(t, os.Rename(record+".real", record))
	keep(k, "/srv/a", "", "/srv/a")
	must.Equal(t, `["/srv/a"]`+"\n", must.Read(t, record))

	// A broken record is said once, and written again.
	must.Do(t, os.WriteFile(record, []byte("[\x00"), 0o600))
	k = &Keeper{Root: p.root}
	keep(k, "/srv/a", "read /var/lib/kbnode/textfile.json: ", "/srv/a")
	keep(k, "/srv/a", "", "/srv/a")
	must.Equal(t, `["/srv/a"]`+"\n", must.Read(t, record))
	// Without room for it, the metrics come anyway.
	must.Do(t, os.RemoveAll(filepath.Dir(record)))
	keep(k, "/srv/b", "write /var/lib/kbnode/textfile.json", "/srv/b")
}
