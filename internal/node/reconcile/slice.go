package reconcile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/machine/systemd"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// runtimeDir is where systemd keeps what SetProperties set until the next boot.
const runtimeDir = "/run/systemd/system.control"

// runtimeNames are the properties that kbnode sets on a slice.
var runtimeNames = []string{"AllowedCPUs", "AllowedMemoryNodes", "MemoryMax", "MemorySwapMax", "TasksMax", "DevicePolicy", "DeviceAllow"}

// sameDevices reports whether the device policy that was last set is the planned one. A
// slice without devices needs none.
func sameDevices(want plan.Slice, got slot.Slice) bool {
	if len(want.Devices) == 0 {
		return len(got.Devices) == 0 || slices.Equal(got.Devices, []string{"auto"})
	}
	return slices.Equal(deviceLines(want), got.Devices)
}

func deviceLines(want plan.Slice) []string {
	var lines []string
	for _, d := range want.Devices {
		lines = append(lines, d.Path+" "+permissions(d.Perm))
	}
	slices.Sort(lines)
	return append([]string{"closed"}, slices.Compact(lines)...)
}

// permissions returns perm in the order in which systemd writes it.
func permissions(perm string) string {
	return strings.Map(func(c rune) rune {
		if strings.ContainsRune(perm, c) {
			return c
		}
		return -1
	}, "rwm")
}

// properties returns all limits of a slice. The full set is sent each time: anything left
// out would keep the value of an older plan.
func properties(want plan.Slice) ([]systemd.Property, error) {
	var props []systemd.Property
	for _, set := range []struct{ name, list string }{{"AllowedCPUs", want.CPUs}, {"AllowedMemoryNodes", want.MemoryNodes}} {
		if set.list == "" {
			continue // an empty value clears nothing in the kernel (systemd#43846)
		}
		s, err := cpuset.Parse(set.list)
		if err != nil {
			return nil, fmt.Errorf("%s of %s: %w", set.name, want.Unit, err)
		}
		props = append(props, systemd.Property{Name: set.name, Value: s.Bytes()})
	}
	memory, swap, tasks := uint64(math.MaxUint64), uint64(math.MaxUint64), uint64(math.MaxUint64)
	if want.MemoryBytes > 0 {
		memory, swap = uint64(want.MemoryBytes), 0
	}
	if want.TasksMax > 0 {
		tasks = uint64(want.TasksMax)
	}
	policy, allow := "auto", []systemd.DeviceAllow{}
	for _, d := range want.Devices {
		policy = "closed"
		allow = append(allow, systemd.DeviceAllow{Path: d.Path, Perm: permissions(d.Perm)})
	}
	props = append(props,
		systemd.Property{Name: "MemoryMax", Value: memory}, systemd.Property{Name: "MemorySwapMax", Value: swap}, systemd.Property{Name: "TasksMax", Value: tasks},
		systemd.Property{Name: "DevicePolicy", Value: policy},
		// Lines are added to the existing ones; the empty list clears them.
		systemd.Property{Name: "DeviceAllow", Value: []systemd.DeviceAllow{}},
	)
	if len(allow) > 0 {
		props = append(props, systemd.Property{Name: "DeviceAllow", Value: allow})
	}
	return props, nil
}

// readSlice reads the cgroup of a slice and what was set on it at run time.
func (h *Host) readSlice(unit, cgroup string) (slot.Slice, error) {
	k, _ := plan.OwnsUnit(unit)
	s := slot.Slice{Unit: unit, Slot: k, Cgroup: cgroup, Files: map[string]string{}}
	if cgroup != "" {
		files, err := slot.ReadLimits(h.path(host.CgroupRoot, cgroup))
		if err != nil {
			return s, fmt.Errorf("read limits of %s: %w", unit, err)
		}
		s.Files = files
	}
	for _, name := range []string{"DevicePolicy", "DeviceAllow"} {
		data, err := readSmall(h.path(runtimeFile(unit, name)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, fmt.Errorf("read device policy of %s: %w", unit, err)
		}
		var lines []string
		for line := range strings.Lines(string(data)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok && value != "" {
				lines = append(lines, value)
			}
		}
		slices.Sort(lines)
		s.Devices = append(s.Devices, slices.Compact(lines)...)
	}
	return s, nil
}

// runtimeFile is the drop-in that systemd writes for one property.
func runtimeFile(unit, property string) string {
	return runtimeDir + "/" + unit + ".d/50-" + property + ".conf"
}

// maxSmall is the size in bytes above which readSmall returns errLarge.
const maxSmall = 1 << 20

var errLarge = errors.New("file is over 1 MiB")

// readSmall reads a regular file. It refuses anything else, which could take forever. Of a
// larger file than maxSmall it returns the beginning and errLarge.
func readSmall(name string) ([]byte, error) {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, errors.Join(err, fmt.Errorf("%s is not a regular file", name))
	}
	data, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(data) > maxSmall {
		return data[:maxSmall], fmt.Errorf("read %s: %w", name, errLarge)
	}
	return data, err
}
