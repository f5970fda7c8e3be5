package noise

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// AMD samples an AMD GPU at this interval. It reads the files of its PCI device in
// /sys, whose directory is dir.
func AMD(dir string, every time.Duration) Samples {
	return func(ctx context.Context, each func(nvml.Sample)) error {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			s, err := SampleAMD(dir)
			if err != nil {
				return err
			}
			each(s)
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}
}

// SampleAMD reads amdgpu's files: the active step of pp_dpm_sclk ("1: 2100Mhz *"), how
// busy the GPU is, and the temperature of its junction, or of its edge, in thousandths
// of a degree. On a partitioned GPU all values are those of the whole GPU, and the
// clock is that of its first die.
func SampleAMD(dir string) (s nvml.Sample, err error) {
	if s.Clock, err = ActiveClock(filepath.Join(dir, "pp_dpm_sclk")); err != nil {
		return s, err
	}
	s.Busy = number(filepath.Join(dir, "gpu_busy_percent"), 1)
	monitors, _ := filepath.Glob(filepath.Join(dir, "hwmon/hwmon[0-9]*")) // the pattern is well formed
	for _, m := range monitors {
		for _, sensor := range []string{"temp2", "temp1"} {
			s.Temperature = number(filepath.Join(m, sensor+"_input"), 1000)
			if s.Temperature == nil {
				continue
			}
			if limit := number(filepath.Join(m, sensor+"_crit"), 1000); limit != nil && *limit > 0 {
				s.Margin = new(int32(*limit) - int32(*s.Temperature))
			}
			break
		}
		for _, name := range []string{"power1_average", "power1_input"} { // in microwatts
			if s.Power == nil {
				s.Power = number(filepath.Join(m, name), 1000)
			}
		}
	}
	return s, nil
}

// ActiveClock returns the marked step of one of amdgpu's lists of clocks, in MHz.
func ActiveClock(path string) (*uint32, error) {
	clocks, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("read clocks: %w", err)
	}
	var clock *uint32
	for line := range strings.Lines(clocks) {
		_, step, _ := strings.Cut(line, ":")
		mhz, active := strings.CutSuffix(strings.TrimSpace(step), "*")
		if n, err := strconv.ParseUint(strings.TrimSuffix(strings.ToLower(strings.TrimSpace(mhz)), "mhz"), 10, 32); active && err == nil {
			clock = new(uint32(n))
		}
	}
	if clock == nil {
		return nil, errors.New("read clocks: none is marked as active in " + filepath.Base(path))
	}
	return clock, nil
}

// number returns the number in a file, divided by unit, or nil if there is none.
func number(path string, unit uint64) *uint32 {
	n, err := strconv.ParseUint(trimmed(path), 10, 63)
	if err != nil {
		return nil
	}
	return new(uint32(n / unit))
}

func read(path string) (string, error) {
	text, err := limit.ReadFile(path, 16<<10)
	return string(text), err
}

// trimmed returns the text of a file, "" if it cannot be read.
func trimmed(path string) string {
	text, _ := read(path)
	return strings.TrimSpace(text)
}
