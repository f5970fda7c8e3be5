// Package signals reads what package health judges: the GPUs, the kernel's log and the node.
package signals

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/node/health"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// maxRead bounds one file, in bytes. NVIDIA's CDI specification for eight GPUs has about
// 60 KiB.
const maxRead = 1 << 20

// readTime bounds one read of a device or file system, any of which may hang.
const readTime = 5 * time.Second

// Now reads the clocks.
func Now() (health.Moment, error) {
	up, err := uptime()
	if err != nil {
		return health.Moment{}, err
	}
	id, err := readFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return health.Moment{}, fmt.Errorf("read boot ID: %w", err)
	}
	return health.Moment{Now: time.Now().UTC().Round(0), Up: up, Boot: id}, nil
}

func uptime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}

// ReadGPUs reads the GPUs of the machine below root, and nothing else. It takes as long
// as the NVML probe: 20 ms, or 30 s when GPUs begin to hang.
func ReadGPUs(ctx context.Context, root string) (*health.GPUs, error) {
	up, err := uptime()
	if err != nil {
		return nil, err
	}
	list, nv, problems, err := detect.ReadGPUs(ctx, root)
	if err != nil {
		return nil, fmt.Errorf("read GPUs: %w", err)
	}
	g := &health.GPUs{Started: up, List: list, NVIDIA: nv, Bus: ReadBus(root, list)}
	for _, p := range problems {
		g.Unread = append(g.Unread, p.Subject)
	}
	return g, nil
}

// ReadBus reads from sysfs, below root, what the inventory lacks about its GPUs. A GPU
// with nothing readable is an empty Bus. Reading the registers of a GPU that hangs may
// take forever, and is then not tried again.
func ReadBus(root string, gpus []inventory.GPU) map[string]health.Bus {
	list := map[string]health.Bus{}
	for _, g := range gpus {
		pci, _ := inventory.PCIAddress(g.PCI)
		if _, done := list[g.PCI]; done || pci != g.PCI {
			continue
		}
		dir := filepath.Join(root, "sys/bus/pci/devices", g.PCI)
		b, err := limit.Call(root, dir, readTime, func() (health.Bus, error) {
			b := readBus(dir)
			if g.Vendor == "amd" { // NVML reports NVIDIA's
				b.Link = readLink(dir)
			}
			return b, nil
		})
		b.Unread = err != nil
		if g.Vendor == "amd" && err == nil && !b.Dead { // on its own: what is not judged must not keep the rest from being judged
			b.Telemetry, _ = limit.Call(root, dir+"/hwmon", readTime, func() (health.Telemetry, error) { return readTelemetry(dir), nil })
		}
		list[g.PCI] = b
	}
	return list
}

func readBus(dir string) health.Bus {
	var b health.Bus
	if f, err := os.Open(filepath.Join(dir, "config")); err == nil {
		var id [4]byte // vendor and device; sysfs asks the device itself
		_, err := io.ReadFull(f, id[:])
		b.Dead = err == nil && id == [4]byte{0xff, 0xff, 0xff, 0xff}
		_ = f.Close()
	}
	counters, _ := filepath.Glob(filepath.Join(dir, "ras", "*_err_count"))
	for _, name := range counters {
		text, err := readFile(name)
		if err != nil {
			b.RAS = nil // if one counter is missing, a lower sum does not indicate a reset
			break
		}
		var errors uint64
		for line := range strings.Lines(text) {
			kind, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if n, err := strconv.ParseUint(strings.TrimSpace(value), 10, 64); err == nil && kind == "ue" {
				errors = n
			}
		}
		if b.RAS == nil {
			b.RAS = map[string]uint64{}
		}
		b.RAS[strings.TrimSuffix(filepath.Base(name), "_err_count")] = errors
	}
	return b
}

// readTelemetry reads what amdgpu reports of the GPU's work. What it does not report is absent.
func readTelemetry(dir string) (t health.Telemetry) {
	t.Sample, _ = noise.SampleAMD(dir)
	t.MemoryClock, _ = noise.ActiveClock(filepath.Join(dir, "pp_dpm_mclk"))
	caps, _ := filepath.Glob(filepath.Join(dir, "hwmon/hwmon[0-9]*/power1_cap"))
	for _, name := range caps {
		text, _ := readFile(name) // no text is no number
		if microwatts, err := strconv.ParseUint(text, 10, 41); err == nil {
			t.PowerLimit = new(uint32(microwatts / 1000))
		}
	}
	return t
}

func readLink(dir string) *nvml.PCIe {
	number := func(name string) *int {
		text, _ := readFile(filepath.Join(dir, name)) // no text is no number
		n, err := strconv.Atoi(text)
		if err != nil || n < 0 {
			return nil
		}
		return &n
	}
	l := nvml.PCIe{Width: number("current_link_width"), MaxWidth: number("max_link_width"), Replays: number("pcie_replay_count")}
	if l == (nvml.PCIe{}) {
		return nil
	}
	return &l
}

// ReadNode reads what files and system calls report about the node: disks, clock and CDI
// specification, which the engine looks for in cdiDirs, or by default in CDI's own. The caller
// fills in Docker and Down. A part that cannot be read is omitted, listed in Unread, and named
// in the error.
func ReadNode(root string, disks []string, cdiDirs ...string) (health.Node, error) {
	var n health.Node
	var errs []error
	for _, path := range disks {
		name := filepath.Join(root, path)
		st, err := limit.Call(root, "statfs "+name, readTime, func() (st unix.Statfs_t, err error) {
			err = unix.Statfs(name, &st)
			return st, err
		})
		switch {
		case errors.Is(err, fs.ErrNotExist): // there is no such disk
			errs = append(errs, fmt.Errorf("statfs %s: %w", path, err))
			continue
		case err != nil:
			errs, n.Unread = append(errs, fmt.Errorf("statfs %s: %w", path, err)), append(n.Unread, path)
			continue
		}
		n.Disks = append(n.Disks, inventory.DiskFree{Path: path, TotalBytes: int64(st.Blocks) * st.Frsize, FreeBytes: int64(st.Bavail) * st.Frsize})
	}
	var tx unix.Timex
	state, err := unix.Adjtimex(&tx) // changes nothing: no modes are set
	if err != nil {
		errs = append(errs, fmt.Errorf("adjtimex: %w", err))
	}
	n.Clock = clock(state, tx, err)
	n.CDIDriver, err = limit.Call(root, "CDI specification", readTime, func() (string, error) { return cdiDriver(root, cdiDirs) })
	if err != nil {
		n.Unread = append(n.Unread, health.CheckDriver)
	}
	n.Overdue = limit.Overdue(root)
	return n, errors.Join(append(errs, err)...)
}

// maxClockError is the largest error, in microseconds, of a clock that something synchronizes. timedatectl
// goes by it alone: STA_UNSYNC only keeps the kernel from setting the hardware's clock.
const maxClockError = 16_000_000

func clock(state int, tx unix.Timex, err error) health.Clock {
	c := clockState(state, tx.Status, err)
	if c == health.ClockAdrift && tx.Maxerror < maxClockError { // as with chrony without rtcsync
		return health.ClockSynchronised
	}
	return c
}

func clockState(state int, status int32, err error) health.Clock {
	switch {
	case err != nil:
		return health.ClockUnknown
	case state == unix.TIME_ERROR || status&unix.STA_UNSYNC != 0:
		return health.ClockAdrift
	}
	return health.ClockSynchronised
}

// cdiSpecs returns the files that may be NVIDIA's specification, the one with the usual name first. By CDI's rule
// a later directory takes precedence.
func cdiSpecs(root string, dirs []string) (names []string) {
	for _, dir := range slices.Backward(dirs) {
		usual := filepath.Join(root, dir, "nvidia.yaml")
		names = append(names, usual)
		for _, form := range []string{"*.yaml", "*.json"} {
			others, _ := filepath.Glob(filepath.Join(root, dir, form)) // the form is right
			others = slices.DeleteFunc(others, func(name string) bool { return name == usual })
			names = append(names, others[:min(len(others), inventory.MaxCDISpecs)]...)
		}
	}
	return names
}

// ofGPUs matches the kind of a specification of NVIDIA's GPUs. Those of other kinds, such as
// management.nvidia.com/gpu, name the driver's files, too, and no job gets them.
var ofGPUs = lazy.Regexp(`(?m)(^|[{,])\s*"?kind"?\s*:\s*["']?nvidia\.com/gpu\b`)

// ofUUIDs matches the name of a device that a slot may have. A file without any, left from an older driver, is no
// slot's.
var ofUUIDs = lazy.Regexp(`"?name"?\s*:\s*["']?(GPU|MIG)-`)

// cdiDriver returns the driver version in NVIDIA's CDI specification, which lists the
// driver's files; "" if there is none.
func cdiDriver(root string, dirs []string) (string, error) {
	if len(dirs) == 0 {
		dirs = []string{"/etc/cdi", "/run/cdi"}
	}
	if version := countingDriver(root, dirs); version != "" {
		return version, nil
	}
	var errs []error
	for _, name := range cdiSpecs(root, dirs) {
		text, err := readFile(name)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EISDIR) && !errors.Is(err, syscall.ELOOP) {
				errs = append(errs, fmt.Errorf("read CDI specification: %w", err))
			}
			continue
		}
		if filepath.Base(name) != "nvidia.yaml" && (!ofGPUs().MatchString(text) || !ofUUIDs().MatchString(text)) {
			continue
		}
		if version := cudaVersion(text); version != "" {
			return version, nil
		}
	}
	return "", errors.Join(errs...)
}

// countingDriver returns the driver version in the specification that the first device of a slot comes from, by CDI's own
// rule; "" if none names the driver's files.
func countingDriver(root string, dirs []string) string {
	specs, _ := detect.ReadCDI(root, dirs) // what it cannot read counts for nothing
	counts, _ := detect.CountingCDI(specs)
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		device, nvidia := strings.CutPrefix(name, "nvidia.com/gpu=")
		if !nvidia || !strings.HasPrefix(device, "GPU-") && !strings.HasPrefix(device, "MIG-") {
			continue
		}
		for _, file := range counts[name].Needs {
			if version := cudaVersion(file); version != "" {
				return version
			}
		}
	}
	return ""
}

// cudaVersion returns the version in the first name of libcuda's file in a text, "" if there is none.
func cudaVersion(text string) string {
	for _, after := range strings.Split(text, "/libcuda.so.")[1:] {
		end := strings.IndexFunc(after, func(r rune) bool { return (r < '0' || r > '9') && r != '.' })
		if end < 0 {
			end = len(after)
		}
		if version := strings.Trim(after[:end], "."); strings.Contains(version, ".") { // not the link libcuda.so.1
			return version
		}
	}
	return ""
}

// readFile returns the first maxRead bytes of a file without surrounding white space.
func readFile(name string) (string, error) {
	data, err := limit.ReadFile(name, maxRead)
	return strings.TrimSpace(string(data)), err
}
