package noise

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/shirou/gopsutil/v3/common"
	"github.com/shirou/gopsutil/v3/cpu"
	"github.com/shirou/gopsutil/v3/load"

	"github.com/gpu-mode/kbnode/internal/cpuset"
)

const (
	maxInterrupts = 32 << 20 // bytes; 512 CPUs with 4000 lines are 23 MB
	maxLine       = 256 << 10
	maxNeighbours = 64
)

// reading holds the counters of a slot and its neighbors at one moment. It lacks parts
// that could not be read.
type reading struct {
	at        time.Time
	slot      *stats.Metrics
	times     map[int]cpu.TimesStat // by CPU
	heat      map[int]int           // throttle counts by CPU
	devices   map[int]uint32        // interrupts by CPU
	local     map[int]uint32
	neighbors map[string]neighbor
	load1     *float64
}

type neighbor struct {
	usage uint64 // microseconds
	cpus  int
}

// read takes a reading. If a part fails, it reads the rest and also returns an error.
func (c Config) read(ctx context.Context) (reading, error) {
	r := reading{at: time.Now()}
	ctx = context.WithValue(ctx, common.EnvKey, common.EnvMap{common.HostProcEnvKey: c.Proc, common.HostSysEnvKey: c.Sys})
	var errs [4]error
	r.slot, errs[0] = c.metrics(c.Slice, cgroup2.StatCPU|cgroup2.StatMemory|cgroup2.StatMemoryEvents|cgroup2.StatIO)
	r.times, errs[1] = times(ctx)
	r.neighbors, errs[2] = c.siblings()
	r.devices, r.local, errs[3] = c.interrupts()
	r.heat = c.throttles()
	if avg, err := load.AvgWithContext(ctx); err == nil {
		r.load1 = &avg.Load1
	}
	return r, errors.Join(errs[:]...)
}

// metrics returns the metrics of one cgroup. The library would take a missing file as
// zero.
func (c Config) metrics(group string, what cgroup2.StatMask) (*stats.Metrics, error) {
	if _, err := os.Stat(filepath.Join(c.Cgroups, group, "cpu.stat")); err != nil {
		return nil, fmt.Errorf("read cgroup: %w", err)
	}
	m, err := cgroup2.Load("/"+group, cgroup2.WithMountpoint(c.Cgroups))
	if err != nil {
		return nil, fmt.Errorf("read cgroup %s: %w", group, err)
	}
	s, err := m.StatFiltered(what)
	if err != nil {
		return nil, fmt.Errorf("read cgroup %s: %w", group, err)
	}
	return s, nil
}

func times(ctx context.Context) (map[int]cpu.TimesStat, error) {
	list, err := cpu.TimesWithContext(ctx, true)
	if err == nil && len(list) == 0 {
		err = errors.New("no CPU found")
	}
	if err != nil {
		return nil, fmt.Errorf("read /proc/stat: %w", err)
	}
	all := map[int]cpu.TimesStat{}
	for _, t := range list {
		if id, err := strconv.Atoi(strings.TrimPrefix(t.CPU, "cpu")); err == nil {
			all[id] = t
		}
	}
	return all, nil
}

// siblings returns the slices beside the slot's.
func (c Config) siblings() (map[string]neighbor, error) {
	parent := filepath.Dir(c.Slice)
	entries, err := os.ReadDir(filepath.Join(c.Cgroups, parent))
	if err != nil {
		return nil, fmt.Errorf("list the slots: %w", err)
	}
	all := map[string]neighbor{}
	for _, e := range entries {
		if !e.IsDir() || !strings.HasSuffix(e.Name(), ".slice") || e.Name() == filepath.Base(c.Slice) || len(all) == maxNeighbours {
			continue
		}
		s, err := c.metrics(filepath.Join(parent, e.Name()), cgroup2.StatCPU)
		if err != nil {
			continue // it is gone
		}
		n := neighbor{usage: s.GetCPU().GetUsageUsec()}
		if set, err := cpuset.Parse(trimmed(filepath.Join(c.Cgroups, parent, e.Name(), "cpuset.cpus.effective"))); err == nil {
			n.cpus = set.Len()
		}
		all[e.Name()] = n
	}
	return all, nil
}

// throttles returns how often heat slowed down each core, for CPUs that count it
// (Intel).
func (c Config) throttles() map[int]int {
	all := map[int]int{}
	for _, id := range c.CPUs.Ints() {
		if n := number(filepath.Join(c.Sys, "devices/system/cpu/cpu"+strconv.Itoa(id), "thermal_throttle/core_throttle_count"), 1); n != nil {
			all[id] = int(*n)
		}
	}
	return all
}

// interrupts sums /proc/interrupts for the slot's CPUs. Lines with a number are
// devices', those with a name are the CPUs' own. Sums wrap as the kernel's do.
func (c Config) interrupts() (devices, local map[int]uint32, err error) {
	f, err := os.Open(filepath.Join(c.Proc, "interrupts"))
	if err != nil {
		return nil, nil, fmt.Errorf("read interrupts: %w", err)
	}
	defer f.Close() //nolint:errcheck // only read
	devices, local = map[int]uint32{}, map[int]uint32{}
	lines := bufio.NewScanner(io.LimitReader(f, maxInterrupts))
	lines.Buffer(make([]byte, 0, 16<<10), maxLine)
	var columns []int // the CPU of each, -1 if it is not the slot's
	for lines.Scan() {
		label, rest, found := bytes.Cut(lines.Bytes(), []byte(":"))
		if columns == nil {
			if columns, err = c.header(lines.Text()); err != nil {
				return nil, nil, err
			}
			continue
		}
		if !found {
			continue
		}
		sum := local
		if label = bytes.TrimSpace(label); len(label) > 0 && label[0] >= '0' && label[0] <= '9' {
			sum = devices
		}
		addLine(sum, columns, rest)
	}
	if err := lines.Err(); err != nil {
		return nil, nil, fmt.Errorf("read interrupts: %w", err)
	}
	return devices, local, nil
}

func (c Config) header(line string) ([]int, error) {
	var columns []int
	for name := range strings.FieldsSeq(line) {
		id, err := strconv.Atoi(strings.TrimPrefix(name, "CPU"))
		if err != nil {
			return nil, fmt.Errorf("read interrupts: %q is not a CPU", name)
		}
		if !c.CPUs.Contains(id) {
			id = -1
		}
		columns = append(columns, id)
	}
	if slices.Max(append(columns, -1)) < 0 {
		return nil, fmt.Errorf("read interrupts: none of the slot's CPUs found")
	}
	return columns, nil
}

// addLine adds the numbers of a line. It runs thousands of times with hundreds of
// numbers, so it copies nothing.
func addLine(sum map[int]uint32, columns []int, line []byte) {
	for _, id := range columns {
		line = bytes.TrimLeft(line, " ")
		n, digits := uint32(0), 0
		for digits < len(line) && line[digits] >= '0' && line[digits] <= '9' {
			n = n*10 + uint32(line[digits]-'0')
			digits++
		}
		if digits == 0 {
			return // shorter than the others, as ERR and MIS are
		}
		if id >= 0 {
			sum[id] += n
		}
		line = line[digits:]
	}
}
