package probe

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/text"
)

// The settings of a GPU that Set can change.
const (
	SetPersistence = "persistence" // "on" or "off"
	SetClocks      = "clocks"      // of its SMs: "default", "base", or MHz to lock them to
)

// Bounds of a clock in MHz; the driver checks what the GPU supports.
const (
	minClock = 100
	maxClock = 10_000
)

// Setting is one change of one GPU.
type Setting struct {
	GPU   string // UUID
	Name  string // SetPersistence or SetClocks
	Value string
}

// ParseSet parses the arguments of kbnode-nvml set: a UUID, a name and a value.
func ParseSet(args []string) (Setting, error) {
	if len(args) != 3 {
		return Setting{}, errors.New("write set UUID NAME VALUE")
	}
	s := Setting{GPU: args[0], Name: args[1], Value: args[2]}
	rest, ok := strings.CutPrefix(s.GPU, "GPU-")
	if !ok || rest == "" || len(rest) > 90 || strings.ContainsFunc(rest, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z') && r != '-'
	}) {
		return Setting{}, fmt.Errorf("%.100q is not the UUID of a GPU", s.GPU)
	}
	switch s.Name {
	case SetPersistence:
		if s.Value != "on" && s.Value != "off" {
			return Setting{}, fmt.Errorf("persistence is %.100q; write on or off", s.Value)
		}
	case SetClocks:
		if _, err := s.MHz(); err != nil {
			return Setting{}, err
		}
	default:
		return Setting{}, fmt.Errorf("%.100q cannot be set; write %s or %s", s.Name, SetPersistence, SetClocks)
	}
	return s, nil
}

// MHz returns the clock to lock to; 0 for default and base.
func (s Setting) MHz() (uint32, error) {
	if s.Value == "default" || s.Value == "base" {
		return 0, nil
	}
	n, err := strconv.ParseUint(s.Value, 10, 32)
	if err != nil || n < minClock || n > maxClock {
		return 0, fmt.Errorf("clocks are %.100q; write default, base or a number of MHz from %d to %d", s.Value, minClock, maxClock)
	}
	return uint32(n), nil
}

// Set changes a setting of one GPU. It is a separate run of the probe, with the same
// deadline, and changes nothing else. The driver forgets the setting when it is loaded
// again.
func Set(ctx context.Context, opts Options, s Setting) error {
	args := []string{s.GPU, s.Name, s.Value}
	if _, err := ParseSet(args); err != nil {
		return err
	}
	opts.GPU, opts.set = s.GPU, args
	r, err := Run(ctx, opts)
	if err != nil {
		return err
	}
	if len(r.GPUs) != 1 || r.GPUs[0].UUID != s.GPU {
		return errors.New("the NVML probe reports no result for the GPU")
	}
	if why := r.GPUs[0].Error; why != "" {
		return errors.New(text.Line(why, 300))
	}
	return nil
}
