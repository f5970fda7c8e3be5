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

	"github.com/gpu-mode/kbnode/internal/plan"
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
