package slot

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
)

// maxPolicy bounds a policy file, in bytes.
const maxPolicy = 1 << 20

// ReadPolicy reads what a slot's jobs may do from the file that its guard reads. Below any root
// but "/", links cannot lead out of the tree.
func ReadPolicy(root string, k int) (plan.JobPolicy, error) {
	var p plan.JobPolicy
	name := plan.SlotPolicyPath(k)
	f, err := open(root, name)
	if err != nil {
		return p, fmt.Errorf("read policy of slot %s: %w", plan.SlotName(k), err)
	}
	defer func() { _ = f.Close() }()
	data, err := io.ReadAll(io.LimitReader(f, maxPolicy))
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil {
		return p, fmt.Errorf("read policy %s: %w", name, err)
	}
	if p.Slot != k {
		return p, fmt.Errorf("policy %s is for slot %d; run kbnode reconcile", name, p.Slot)
	}
	return p, nil
}

// ReadPolicies reads the policies of all slots that a machine has, by index. It returns none on
// a machine that is not a node.
func ReadPolicies(root string) ([]plan.JobPolicy, error) {
	dir, err := open(root, path.Dir(plan.SlotPolicyPath(0)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list slots: %w", err)
	}
	defer func() { _ = dir.Close() }()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("list slots: %w", err)
	}
	var all []plan.JobPolicy
	for _, name := range names {
		k, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(name, "gpu"), ".json"))
		if err != nil || path.Base(plan.SlotPolicyPath(k)) != name {
			continue
		}
		p, err := ReadPolicy(root, k)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	slices.SortFunc(all, func(a, b plan.JobPolicy) int { return a.Slot - b.Slot })
	return all, nil
}

func open(root, name string) (*os.File, error) {
	if filepath.Clean(root) == "/" {
		return os.Open(name)
	}
	return os.OpenInRoot(root, strings.TrimPrefix(name, "/"))
}

// Label marks the container and the network of a slot, for people and the rest of kbnode.
const Label = "kbnode.slot"

// The files of a slice's cgroup. They are what counts: systemd's view of a limit may differ
// from the kernel's (after a daemon-reload systemd 257 shows the new one and applies nothing).
const (
	FileCPUs      = "cpuset.cpus.effective"
	FileOwnCPUs   = "cpuset.cpus" // empty if the slice itself sets none
	FilePartition = "cpuset.cpus.partition"
	fileNodes     = "cpuset.mems.effective"
	fileMemory    = "memory.max"
	fileSwap      = "memory.swap.max"
	filePids      = "pids.max"
)

// ReadLimits reads the cgroup of a slice. A file that the kernel does not have is absent.
func ReadLimits(dir string) (map[string]string, error) {
	files := map[string]string{}
	for _, name := range []string{FileCPUs, FileOwnCPUs, FilePartition, fileNodes, fileMemory, fileSwap, filePids, "memory.current", "pids.current"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil {
			files[name] = strings.TrimSpace(string(text))
		} else if !host.Ended(err) {
			return files, err
		}
	}
	return files, nil
}

// Mismatch is a limit that differs from the plan.
type Mismatch struct {
	File      string `json:"file"` // below /sys, or "DeviceAllow"
	Planned   string `json:"planned"`
	Effective string `json:"effective"`
}

func (m Mismatch) String() string {
	if m.Effective == "" {
		return fmt.Sprintf("%s does not exist, should be %s", m.File, m.Planned)
	}
	return fmt.Sprintf("%s is %s, should be %s", m.File, m.Effective, m.Planned)
}

// PageSlack is how much the kernel may round a limit down: to a page, which is at most 64 KiB.
const PageSlack = 64 << 10

// Compare returns where a slice differs from its plan, as far as the kernel's files show.
func Compare(want plan.Slice, got Slice) []Mismatch {
	var out []Mismatch
	add := func(file, planned string, same func(string) bool) {
		if value := got.Files[file]; !same(value) {
			out = append(out, Mismatch{File: path.Join(host.CgroupRoot, got.Cgroup, file), Planned: planned, Effective: value})
		}
	}
	if want.CPUs != "" {
		add(FileCPUs, want.CPUs, func(value string) bool { return SameSet(want.CPUs, value) })
	}
	if want.MemoryNodes != "" {
		add(fileNodes, want.MemoryNodes, func(value string) bool { return SameSet(want.MemoryNodes, value) })
	}
	if want.MemoryBytes > 0 {
		add(fileMemory, strconv.FormatInt(want.MemoryBytes, 10), func(value string) bool {
			n, err := strconv.ParseInt(value, 10, 64)
			return err == nil && n <= want.MemoryBytes && want.MemoryBytes-n < PageSlack
		})
		if _, ok := got.Files[fileSwap]; ok { // absent without swap accounting
			add(fileSwap, "0", func(value string) bool { return value == "0" })
		}
	}
	if want.TasksMax > 0 {
		planned := strconv.FormatInt(want.TasksMax, 10)
		add(filePids, planned, func(value string) bool { return value == planned })
	}
	return out
}

// SameSet reports whether two texts are the same set of CPUs or memory nodes. "" is none.
func SameSet(a, b string) bool {
	x, errX := cpuset.Parse(a)
	y, errY := cpuset.Parse(b)
	return b != "" && errX == nil && errY == nil && x.Equal(y)
}

// CheckLimits compares what the kernel enforces on the slot's slice below this cgroup root with
// the policy; the error is a sentence with what to type. The engine starts containers below a
// slice that does not exist, and systemd then makes one without any limit, so this is called
// before every container.
func CheckLimits(cgroupRoot string, p plan.JobPolicy) error {
	got := Slice{Cgroup: plan.SliceCgroup(p.Slice)}
	_, err := os.Stat(filepath.Join(cgroupRoot, got.Cgroup))
	if err == nil {
		got.Files, err = ReadLimits(filepath.Join(cgroupRoot, got.Cgroup))
	}
	errs := []error{err}
	if err == nil {
		for _, m := range Compare(plan.Slice{CPUs: p.CPUs, MemoryNodes: p.MemoryNodes, MemoryBytes: p.MemoryBytes}, got) {
			file, text := path.Base(m.File), "%s of %s is %s, planned is %s"
			if strings.HasPrefix(file, "cpuset.") {
				text = "%s of %s is %q, planned is %q"
			}
			errs = append(errs, fmt.Errorf(text, file, p.Slice, m.Effective, m.Planned))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("slot %s does not have its limits, so jobs cannot run; run kbnode reconcile on the node: %w", p.Name, err)
	}
	return nil
}
