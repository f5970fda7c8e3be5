package slot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// CgroupRoot is where cgroup v2 is mounted.
const CgroupRoot = "/sys/fs/cgroup"

// PageSlack is how much the kernel may round a limit down: to a page, which is at most 64 KiB.
const PageSlack = 64 << 10

// CheckLimits compares what the kernel enforces on the slot's slice below this cgroup root with
// the policy; the error is a sentence with what to type. The engine starts containers below a
// slice that does not exist, and systemd then makes one without any limit, so this is called
// before every container.
func CheckLimits(cgroupRoot string, p plan.JobPolicy) error {
	dir := filepath.Join(cgroupRoot, plan.SliceCgroup(p.Slice))
	err := errors.Join(
		checkSet(dir, "cpuset.cpus.effective", p.CPUs),
		checkSet(dir, "cpuset.mems.effective", p.MemoryNodes),
		checkBytes(dir, "memory.max", p.MemoryBytes-PageSlack+1, p.MemoryBytes),
		checkBytes(dir, "memory.swap.max", 0, 0),
	)
	if err != nil {
		return fmt.Errorf("slot %s does not have its limits, so jobs cannot run; run kbnode reconcile on the node: %w", p.Name, err)
	}
	return nil
}

func checkSet(dir, file, want string) error {
	text, err := readLine(dir, file)
	if err != nil {
		return err
	}
	has, err := cpuset.Parse(text)
	if err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	planned, err := cpuset.Parse(want)
	if err != nil {
		return fmt.Errorf("read the policy: %w", err)
	}
	if !has.Equal(planned) {
		return fmt.Errorf("%s of %s is %q, planned is %q", file, filepath.Base(dir), has, planned)
	}
	return nil
}

func checkBytes(dir, file string, low, high int64) error {
	text, err := readLine(dir, file)
	if err != nil {
		// Without swap in the kernel there is none to limit.
		if file == "memory.swap.max" && errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < low || n > high {
		return fmt.Errorf("%s of %s is %s, planned is %d", file, filepath.Base(dir), text, high)
	}
	return nil
}

func readLine(dir, file string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(data)), err
}
