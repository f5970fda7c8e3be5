package signals

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

func pci(i int) string { return fmt.Sprintf("0000:%02x:00.0", 0x1a+i) }

func TestReadBus(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := func(i int, name string) string { return "sys/bus/pci/devices/" + pci(i) + "/" + name }
	must.Write(t, root, dir(0, "config"), "\x02\x10\xa1\x74\x06\x04")
	must.Write(t, root, dir(0, "ras/umc_err_count"), "ue: 3\nce: 12\nde: 1\n")
	must.Write(t, root, dir(0, "ras/gfx_err_count"), "ue: 0\nce: nonsense\n")
	must.Write(t, root, dir(0, "current_link_width"), "16\n")
	must.Write(t, root, dir(0, "max_link_width"), "-1\n") // rubbish
	must.Write(t, root, dir(0, "pcie_replay_count"), "12\n")
	must.Write(t, root, dir(0, "pp_dpm_sclk"), "0: 132Mhz\n1: 2100Mhz *\n")
	must.Write(t, root, dir(0, "pp_dpm_mclk"), "0: 900Mhz *\n1: 1300Mhz\n")
	must.Write(t, root, dir(0, "gpu_busy_percent"), "88\n")
	must.Write(t, root, dir(0, "hwmon/hwmon3/power1_average"), "421000000\n")
	must.Write(t, root, dir(0, "hwmon/hwmon3/power1_cap"), "750000000\n")
	must.Write(t, root, dir(0, "hwmon/hwmon3/temp2_input"), "71000\n")
	must.Write(t, root, dir(1, "config"), strings.Repeat("\xff", 64))
	must.Write(t, root, dir(2, "config"), "\xff\xff") // too short to mean anything
	must.Write(t, root, dir(3, "ras/umc_err_count"), "ue: 3\n")
	must.Do(t, os.Mkdir(filepath.Join(root, dir(3, "ras/gfx_err_count")), 0o700)) // unreadable, which must not look like a reset
	gpus := []inventory.GPU{{PCI: pci(0), Vendor: "amd"}, {PCI: pci(0), Vendor: "amd", Partition: 1}, {PCI: pci(1)}, {PCI: pci(2)}, {PCI: pci(3)}, {PCI: "../../etc"}}
	want := map[string]health.Bus{
		pci(0): {RAS: map[string]uint64{"umc": 3, "gfx": 0}, Link: &nvml.PCIe{Width: new(16), Replays: new(12)}, Telemetry: health.Telemetry{
			Sample:      nvml.Sample{Clock: new(uint32(2100)), Busy: new(uint32(88)), Power: new(uint32(421_000)), Temperature: new(uint32(71))},
			MemoryClock: new(uint32(900)), PowerLimit: new(uint32(750_000)),
		}},
		pci(1): {Dead: true}, pci(2): {}, pci(3): {},
	}
	must.Equal(t, want, ReadBus(root, gpus))
}

func TestReadGPUs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for name, text := range map[string]string{"vendor": "0x1002", "device": "0x74a1", "class": "0x120000", "unique_id": "b2", "config": "\xff\xff\xff\xff"} {
		must.Write(t, root, "sys/bus/pci/devices/"+pci(0)+"/"+name, text)
	}
	g, err := ReadGPUs(t.Context(), root)
	if err != nil || len(g.List) != 1 || g.List[0].UUID != "GPU-00000000000000b2" || !g.Bus[pci(0)].Dead || g.Started <= 0 {
		t.Errorf("%+v, %v", g, err)
	}
	unread := t.TempDir()
	must.Do(t, os.MkdirAll(filepath.Join(unread, "sys/bus/pci"), 0o700))
	must.Do(t, os.Symlink("devices", filepath.Join(unread, "sys/bus/pci/devices"))) // a loop
	if g, err = ReadGPUs(t.Context(), unread); err != nil || len(g.List) > 0 || !slices.Contains(g.Unread, inventory.SubjectGPUs) {
		t.Errorf("a list that cannot be read: %+v, %v", g, err)
	}
	if _, err := ReadGPUs(t.Context(), filepath.Join(root, "not/there")); err == nil {
		t.Error("a machine that is not there")
	}
}

// TestCDIDriver checks that the version is that of the files that slots get, and not of another specification's.
func TestCDIDriver(t *testing.T) {
	t.Parallel()
	spec := func(device, version string) string {
		return "kind: nvidia.com/gpu\ndevices:\n- name: \"" + device + "\"\ncontainerEdits:\n  mounts:\n  - hostPath: /usr/lib/libcuda.so." + version + "\n"
	}
	for name, files := range map[string][2]string{ // of /etc/cdi and /run/cdi
		"numbers of an old one":    {"nvidia.yaml", spec("0", "550.1.2")},
		"an old one's comment":     {"", ""},
		"what only daemons get":    {"nvidia.yaml", "kind: management.nvidia.com/gpu\ncontainerEdits: {mounts: [{hostPath: /lib/libcuda.so.550.1.2}]}\n"},
		"one that two files name":  {"b.yaml", spec("GPU-b", "550.1.2")},
		"another vendor's library": {"a.yaml", "kind: example.com/gpu\ndevices: [{name: GPU-a}]\ncontainerEdits: {mounts: [{hostPath: /lib/libcuda.so.550.1.2}]}\n"},
	} {
		root := t.TempDir()
		must.Write(t, root, "etc/cdi/gpus.yaml", "# was /usr/lib/libcuda.so.550.1.2\n"+spec("GPU-a", "580.95.05"))
		if files[0] != "" {
			must.Write(t, root, "run/cdi/"+files[0], files[1])
		}
		if name == "one that two files name" {
			must.Write(t, root, "run/cdi/c.yaml", files[1])
		}
		if n, err := ReadNode(root, nil); err != nil || n.CDIDriver != "580.95.05" {
			t.Errorf("%s: %q, %v", name, n.CDIDriver, err)
		}
	}
}

// TestCDIDirs has the engine look elsewhere than other programs, for whom an old file is left.
func TestCDIDirs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for dir, version := range map[string]string{"etc/cdi": "550.1.2", "etc/docker/cdi": "580.95.05"} {
		library := "/usr/lib/libcuda.so." + version
		must.Write(t, root, dir+"/nvidia.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-a}]\ncontainerEdits: {mounts: [{hostPath: "+library+"}]}\n")
	}
	n, err := ReadNode(root, nil, "/etc/docker/cdi", "/run/docker/cdi")
	must.Do(t, err)
	must.Equal(t, "580.95.05", n.CDIDriver)
}

func TestReadNode(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	must.Write(t, root, "var/lib/docker/x", "")
	n, err := ReadNode(root, []string{"/var/lib/docker", "/not/there"})
	must.Err(t, err, "/not/there")
	if len(n.Disks) != 1 || n.Disks[0].Path != "/var/lib/docker" || n.Disks[0].TotalBytes <= 0 || n.Disks[0].FreeBytes > n.Disks[0].TotalBytes {
		t.Errorf("disks %+v", n.Disks)
	}
	must.Equal(t, "", n.CDIDriver)
	must.Do(t, os.MkdirAll(filepath.Join(root, "etc/cdi/old.yaml"), 0o755))
	must.Do(t, os.Symlink("loop.json", filepath.Join(root, "etc/cdi/loop.json")))
	must.Write(t, root, "etc/cdi/a.yaml", "kind: management.nvidia.com/gpu\nhostPath: /usr/lib64/libcuda.so.535.1.2")
	if n, err := ReadNode(root, nil); err != nil || n.CDIDriver != "" {
		t.Errorf("%q, %v", n.CDIDriver, err)
	}
	must.Write(t, root, "etc/cdi/b.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: shared\n  hostPath: /usr/lib64/libcuda.so.535.1.2")
	must.Write(t, root, "etc/cdi/gpus.json", `{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "GPU-a"}], "hostPath": "/usr/lib64/libcuda.so.550.1.2"}`)
	if n, err := ReadNode(root, nil); err != nil || n.CDIDriver != "550.1.2" {
		t.Errorf("%q, %v", n.CDIDriver, err)
	}
	must.Write(t, root, "etc/cdi/nvidia.yaml", "hostPath: /usr/lib64/libcuda.so.570.1.2")
	if n, err := ReadNode(root, nil); err != nil || n.CDIDriver != "570.1.2" {
		t.Errorf("%q, %v", n.CDIDriver, err)
	}
	must.Write(t, root, "run/cdi/nvidia.yaml", `
- containerPath: /usr/lib/x86_64-linux-gnu/libcuda.so.1
- hostPath: /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05
`)
	if n, err := ReadNode(root, nil); err != nil || n.CDIDriver != "580.95.05" {
		t.Errorf("%q, %v", n.CDIDriver, err)
	}
	for _, row := range []struct {
		status int32
		errors int64 // in microseconds
		want   health.Clock
	}{
		{unix.STA_UNSYNC, 15_999_999, health.ClockSynchronised}, // chrony without rtcsync
		{unix.STA_UNSYNC, 16_000_000, health.ClockAdrift},
	} {
		if got := clock(unix.TIME_ERROR, unix.Timex{Status: row.status, Maxerror: row.errors}, nil); got != row.want {
			t.Errorf("%+v: %d", row, got)
		}
	}
	for _, row := range []struct {
		state  int
		status int32
		err    error
		want   health.Clock
	}{
		{unix.TIME_OK, unix.STA_PLL, nil, health.ClockSynchronised},
		{unix.TIME_ERROR, 0, nil, health.ClockAdrift},
		{unix.TIME_OK, unix.STA_UNSYNC, nil, health.ClockAdrift},
		{-1, 0, unix.EPERM, health.ClockUnknown},
	} {
		if got := clockState(row.state, row.status, row.err); got != row.want {
			t.Errorf("%+v: %d", row, got)
		}
	}
}

// A FIFO replaces /dev/kmsg: it delivers pieces of lines, and writers come and go.
func TestKmsgFIFO(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "kmsg")
	must.Do(t, unix.Mkfifo(fifo, 0o600))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, done := make(chan health.Fact, 100), make(chan error, 1)
	go func() { done <- Kmsg{Path: fifo}.Run(ctx, func(f health.Fact) { got <- f }) }()
	next := func() health.Fact {
		t.Helper()
		select {
		case f := <-got:
			return f
		case err := <-done:
			t.Fatalf("it ended: %v", err)
		case <-time.After(must.Patience):
			t.Fatal("nothing came")
		}
		return health.Fact{}
	}
	put := func(parts ...string) {
		t.Helper()
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		must.Do(t, err)
		for _, part := range parts {
			if _, err := f.WriteString(part); err != nil {
				t.Fatal(err)
			}
		}
		must.Do(t, f.Close())
	}
	line := func(seq, xid int) string {
		return fmt.Sprintf("3,%d,90000140,-;NVRM: Xid (PCI:0000:1d:00): %d, pid=4711, name=python3, x\n", seq, xid)
	}
	put(line(1, 31)[:20], line(1, 31)[20:]+"6,2,1,-;docker0: x\n"+line(3, 13))
	up, err := uptime()
	must.Do(t, err)
	for _, xid := range []int{31, 13} {
		f := next()
		if f.Xid != xid || (up-f.Up).Abs() > time.Minute {
			t.Errorf("got %+v at %s", f, up)
		}
	}
	// A line that is far too long, from another writer; the next line is read in full.
	put(strings.Repeat("x", 3*kmsgBuffer) + "\n" + line(4, 48))
	if f := next(); f.Xid != 48 {
		t.Errorf("got %+v", f)
	}
	cancel()
	must.Err(t, <-done, "")
}

// With Once, Run ends at the last existing line, though more may come.
func TestKmsgOnce(t *testing.T) {
	t.Parallel()
	fifo := filepath.Join(t.TempDir(), "kmsg")
	must.Do(t, unix.Mkfifo(fifo, 0o600))
	w, err := os.OpenFile(fifo, os.O_RDWR, 0)
	must.Do(t, err)
	defer w.Close() //nolint:errcheck // what was written was read
	if _, err := fmt.Fprint(w, "4,1,5000,-;NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.\n6,2,6000,-;hello\n"); err != nil {
		t.Fatal(err)
	}
	var got []int
	if err := (Kmsg{Path: fifo, Once: true}).Run(t.Context(), func(f health.Fact) { got = append(got, f.Xid) }); err != nil || len(got) != 1 || got[0] != 79 {
		t.Errorf("%v, %v", got, err)
	}
}

// The log of this machine is read if it can be.
func TestKmsgDevice(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := (Kmsg{}).Run(ctx, func(health.Fact) {}); err != nil && !errors.Is(err, unix.EPERM) && !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	must.Err(t, Kmsg{Path: "/not/there"}.Run(t.Context(), nil), "no such file")
}

func TestNow(t *testing.T) {
	t.Parallel()
	a, err := Now()
	must.Do(t, err)
	b, err := Now()
	if err != nil || a.Boot == "" || a.Boot != b.Boot || b.Up < a.Up || a.Up <= 0 {
		t.Errorf("%+v, %+v, %v", a, b, err)
	}
}

// A read that hangs is named, and does not prevent other reads.
func TestReadsThatHang(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("waits for two deadlines")
	}
	root := t.TempDir()
	var gpus []inventory.GPU
	for i := range 3 {
		gpus = append(gpus, inventory.GPU{PCI: pci(i)})
		must.Write(t, root, "sys/bus/pci/devices/"+pci(i)+"/config", "\xff\xff\xff\xff")
	}
	for _, name := range []string{"sys/bus/pci/devices/" + pci(1) + "/config", "run/cdi/nvidia.yaml"} {
		name = filepath.Join(root, name)
		_ = os.MkdirAll(filepath.Dir(name), 0o700)
		_ = os.Remove(name)
		must.Do(t, syscall.Mkfifo(name, 0o600)) // opening it hangs
		t.Cleanup(func() {
			if f, err := os.OpenFile(name, os.O_RDWR, 0); err == nil {
				_ = f.Close()
			}
		})
	}
	want := map[string]health.Bus{pci(0): {Dead: true}, pci(1): {Unread: true}, pci(2): {Dead: true}}
	must.Equal(t, want, ReadBus(root, gpus))
	n, err := ReadNode(root, []string{"/"})
	if err == nil || len(n.Disks) != 1 || !slices.Contains(n.Unread, health.CheckDriver) || len(n.Overdue) != 2 {
		t.Errorf("%+v, %v", n, err)
	}
	began := time.Now()
	ReadBus(root, gpus)
	if time.Since(began) > readTime/2 {
		t.Error("the next pass waits for it again")
	}
}
