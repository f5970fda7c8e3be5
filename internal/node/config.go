package node

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// ConfigText is a configuration before parsing.
type ConfigText struct {
	Name string
	Text []byte
}

// LoadStored loads the configuration file alone.
func (n *Node) LoadStored() error {
	return n.Load(func(string) string { return "" }, config.Config{})
}

// ErrByHand means that the configuration file is not kbnode's to change.
var ErrByHand = errors.New("was written by hand and conflicts with the given flags or variables")

// Load loads the configuration file, then the environment's variables, then the flags. Later ones
// override earlier ones. What they are together must be valid, since kbnode install writes it. They must not
// contradict a file that was written by hand: Config then has them all the same, and the error is ErrByHand.
func (n *Node) Load(env func(string) string, flags config.Config) error {
	n.Config = config.Config{}.WithDefaults() // also if the file is wrong
	file := filepath.Join(cmp.Or(n.Name, n.Root), plan.ConfigPath)
	text, err := n.ReadFile(plan.ConfigPath)
	if n.Asked != nil {
		file, text, err = n.Asked.Name, n.Asked.Text, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read configuration: %w", err)
	}
	n.absent = err != nil
	n.managed = n.absent || plan.IsMarked(string(text))
	read, err := config.Read(file, text)
	if err != nil {
		return &config.InputError{Err: err}
	}
	over, err := config.FromEnv(env)
	if err != nil {
		return &config.InputError{Err: err}
	}
	n.written = config.Merge(config.Merge(read.Config, over), flags)
	n.Config = n.written.WithDefaults()
	n.Notes = nil
	if c := over.GPUCount; c > 0 && flags.GPUs.IsZero() && flags.GPUCount == 0 {
		n.Notes = []string{fmt.Sprintf("GPU_COUNT=%d is read as the first %[1]d GPUs; write --gpu-count %[1]d", c)}
	}
	var wrong []error
	for _, p := range config.Validate(n.written) {
		wrong = append(wrong, fmt.Errorf("%s with the given flags or variables: %s: %s", file, p.Key, p.Text))
	}
	if len(wrong) > 0 {
		return &config.InputError{Err: errors.Join(wrong...)}
	}
	n.rewrite = n.absent || !reflect.DeepEqual(n.written, read.Config)
	if !n.managed && n.rewrite {
		return config.BadInput("%s %w: %s; change the file, or leave them out", file, ErrByHand, strings.Join(config.Differences(read.Config, n.written), "; "))
	}
	return nil
}
