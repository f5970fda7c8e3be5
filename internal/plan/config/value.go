package config

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// GPUs chooses GPUs: those in List by index, UUID or PCI address, all, or none. At most
// one of its fields is set; the zero value means all. A part of a GPU is written as the
// GPU's name, a colon and the part's number: 0:3.
type GPUs struct {
	All  bool // explicitly all, which overrides the choice of a lower layer
	None bool // slots without a GPU
	List []string
}

// Count is a number of GPUs above 0; the zero value means not set.
type Count int

// Threads is a number of hardware threads to reserve. The zero value means "decide";
// NoThreads, which is 0 in a file, means none.
type Threads int

// NoThreads means that the operator wants nothing reserved.
const NoThreads Threads = -1

// Groups are lists of GPUs, each of which is one slot.
type Groups [][]string

var (
	gpuName  = lazy.Regexp(`^(\d{1,4}|GPU-[0-9a-fA-F-]{1,64}|([0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])(:\d{1,2})?$`)
	gpuRange = lazy.Regexp(`^(\d{1,4})-(\d{1,4})$`)
)

// ParseGPUs reads "all", "none" or a comma-separated list, with ranges of indices such as
// 0-3.
func ParseGPUs(s string) (GPUs, error) {
	s = strings.TrimSpace(s)
	switch s {
	case "all":
		return GPUs{All: true}, nil
	case "none":
		return GPUs{None: true}, nil
	}
	var g GPUs
	for part := range strings.SplitSeq(s, ",") {
		names, err := expand(strings.TrimSpace(part))
		if err != nil {
			return GPUs{}, err
		}
		for _, name := range names {
			if slices.Contains(g.List, name) {
				return GPUs{}, fmt.Errorf("GPU %s is listed twice; list each GPU once", name)
			}
			g.List = append(g.List, name)
		}
	}
	return g, nil
}

// expand returns a name as it is, or all indices of a range.
func expand(part string) (names []string, err error) {
	ends := gpuRange().FindStringSubmatch(part)
	if ends == nil {
		if !gpuName().MatchString(part) {
			return nil, fmt.Errorf("%q is not a GPU; write all, none, or indices, UUIDs or PCI addresses such as 0,2,5", part)
		}
		return []string{part}, nil
	}
	first, _ := strconv.Atoi(ends[1]) // gpuRange matches only digits
	last, _ := strconv.Atoi(ends[2])
	switch {
	case first > last:
		return nil, fmt.Errorf("%q runs backward; write %d-%d", part, last, first)
	case last-first >= MaxSlots:
		return nil, fmt.Errorf("%q lists more GPUs than a machine has; write at most %d", part, MaxSlots)
	}
	for k := first; k <= last; k++ {
		names = append(names, strconv.Itoa(k))
	}
	return names, nil
}

// Size is a number of bytes, written as 32GiB, 32G or 34359738368B.
type Size int64

var sizeForm = lazy.Regexp(`^(\d{1,19}(?:\.\d{1,6})?)\s*([kKmMgGtT]?)(i?[bB]?)$`)

// ParseSize reads a size. Units are powers of 1024, as in systemd and Docker;
// it refuses "GB", which means something else.
func ParseSize(s string) (Size, error) {
	s = strings.TrimSpace(s)
	m := sizeForm().FindStringSubmatch(s)
	if m == nil {
		return 0, fmt.Errorf("%q is not a size; write one such as 32GiB", s)
	}
	unit := strings.ToUpper(m[2])
	if strings.Trim(m[1], "0.") == "" {
		return 0, fmt.Errorf("%q is not a size; write one above 0 such as 32GiB, or leave it out for the default", s)
	}
	if unit == "" && m[3] == "" {
		return 0, fmt.Errorf("%q has no unit; write %s", s, sizeMeant(m[1]))
	}
	if strings.EqualFold(m[3], "b") && unit != "" {
		return 0, fmt.Errorf("%q is not a size; write %q", s, m[1]+unit+"iB")
	}
	v, err := strconv.ParseFloat(m[1], 64)
	v *= math.Pow(1024, float64(strings.Index("KMGT", unit)+1)*float64(min(len(unit), 1)))
	if err != nil || v >= math.MaxInt64 || v < 1 {
		return 0, fmt.Errorf("%q is out of range; write a size such as 32GiB", s)
	}
	return Size(v), nil
}

// sizeMeant returns the size that a number without a unit probably means: GiB if it is
// small, else bytes.
func sizeMeant(number string) string {
	if n, err := strconv.ParseInt(number, 10, 64); err == nil && n >= 1<<16 {
		return Size(n).String()
	}
	return number + "GiB"
}

// String returns the size with the largest unit that is exact, in the format of ParseSize.
func (s Size) String() string {
	v, unit := int64(s), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for unit < len(units)-1 && v != 0 && v%1024 == 0 {
		v /= 1024
		unit++
	}
	return strconv.FormatInt(v, 10) + units[unit]
}
