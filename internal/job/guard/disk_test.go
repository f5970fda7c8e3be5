package guard

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/test/must"
)

// testDisk returns a slot's disk in a directory. It records its mounts instead of making them.
func testDisk(t *testing.T) (*slotDisk, *[][2]string) {
	t.Helper()
	dir := t.TempDir()
	var mounts [][2]string
	d := &slotDisk{dir: dir}
	d.bind = func(source, target string) error { mounts = append(mounts, [2]string{source, target}); return nil }
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
		"plain":              {func(*container.CreateRequest) {}, nil, "/etc/hosts /etc/hostname /etc/resolv.conf"},
		"volumes":            {func(*container.CreateRequest) {}, []string{"/data", "/var/lib/db/"}, "/data /var/lib/db /etc/hosts /etc/hostname /etc/resolv.conf"},
		"read-only root":     {func(r *container.CreateRequest) { r.HostConfig.ReadonlyRootfs = true }, []string{"/data"}, "/data"},
		"the job's own file": {func(r *container.CreateRequest) { r.HostConfig.Mounts = []mount.Mount{{Target: "/etc/hosts"}} }, nil, "/etc/hostname /etc/resolv.conf"},
		"a tmpfs there":      {func(r *container.CreateRequest) { r.HostConfig.Tmpfs = map[string]string{"/data": ""} }, []string{"/data"}, "/etc/hosts /etc/hostname /etc/resolv.conf"},
		"a volume over /":    {func(*container.CreateRequest) {}, []string{"/"}, "over the container's root"},
		"a volume over proc": {func(*container.CreateRequest) {}, []string{"/proc/x"}, "cannot mount over /proc"},
		"a relative volume":  {func(*container.CreateRequest) {}, []string{"a/b"}, "is not an absolute path"},
		"too many":           {func(*container.CreateRequest) {}, strings.Fields(strings.Repeat("/v ", 65)), "more than 64 volumes"},
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
	must.Do(t, d.cover(t.Context(), layer, own))
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

func TestWriteEtc(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"hosts", "hostname"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	in := container.InspectResponse{Config: &container.Config{}, HostConfig: &container.HostConfig{}}
	in.Config.Hostname, in.Config.Domainname, in.HostConfig.NetworkMode = "job", "example.org", "kbnode"
	must.Do(t, writeEtc(dir, in))
	for name, want := range map[string]string{"hosts": "127.0.1.1\tjob.example.org job\n", "hostname": "job\n"} {
		if text, err := os.ReadFile(filepath.Join(dir, name)); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s: %q, %v", name, text, err)
		}
	}
	if _, err := os.Lstat(filepath.Join(dir, "resolv.conf")); err == nil {
		t.Error("a file is made that the job mounts itself")
	}
}
