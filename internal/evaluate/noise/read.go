package noise

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/shirou/gopsutil/v3/common"
	"github.com/shirou/gopsutil/v3/cpu"
)

// reading holds the counters of a slot at one moment. It lacks parts that could not be read.
type reading struct {
	at    time.Time
	slot  *stats.Metrics
	times map[int]cpu.TimesStat // by CPU
}

// read takes a reading. If a part fails, it reads the rest and also returns an error.
func (c Config) read(ctx context.Context) (reading, error) {
	r := reading{at: time.Now()}
	var err1, err2 error
	r.slot, err1 = c.metrics()
	r.times, err2 = c.times(ctx)
	return r, errors.Join(err1, err2)
}

// metrics returns the metrics of the slot's cgroup. The library would take a missing file as zero.
func (c Config) metrics() (*stats.Metrics, error) {
	if _, err := os.Stat(filepath.Join(c.Cgroups, c.Slice, "cpu.stat")); err != nil {
		return nil, fmt.Errorf("read cgroup: %w", err)
	}
	m, err := cgroup2.Load("/"+c.Slice, cgroup2.WithMountpoint(c.Cgroups))
	if err != nil {
		return nil, fmt.Errorf("read cgroup %s: %w", c.Slice, err)
	}
	s, err := m.StatFiltered(cgroup2.StatCPU | cgroup2.StatMemory | cgroup2.StatMemoryEvents | cgroup2.StatIO)
	if err != nil {
		return nil, fmt.Errorf("read cgroup %s: %w", c.Slice, err)
	}
	return s, nil
}

func (c Config) times(ctx context.Context) (map[int]cpu.TimesStat, error) {
	ctx = context.WithValue(ctx, common.EnvKey, common.EnvMap{common.HostProcEnvKey: c.Proc})
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
