package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// unitBinary is kbnode's path in the units of a tree that is not this machine.
const unitBinary = "/usr/local/bin/kbnode"

// packagedBinary is where the .deb and the .rpm install kbnode.
const packagedBinary = "/usr/bin/kbnode"

// wishes are the flags that correspond to settings of the configuration file.
type wishes struct {
	cfg           config.Config
	flags         *pflag.FlagSet // nil means no flags
	gpus          string
	memory        string
	reserveMemory string
}

func (w *wishes) register(cmd *cobra.Command) {
	f := cmd.Flags()
	w.flags = f
	f.StringVar(&w.cfg.Queue, "queue", "", "Buildkite queue, or a template with {vendor}, {gpu}, {shape}, {index}, {node}")
	f.StringVar(&w.cfg.Node, "node", "", "name of this node (default: the host name)")
	f.StringVar(&w.gpus, "gpus", "", "GPUs to use: all, none, or indices, UUIDs or PCI addresses such as 0,2,5 or 0-3")
	f.IntVar((*int)(&w.cfg.GPUCount), "gpu-count", 0, "number of GPUs to use, starting with the first (default: all)")
	f.IntVar(&w.cfg.GPUsPerSlot, "gpus-per-slot", 0, "whole GPUs of each slot (default: 1)")
	f.IntVar(&w.cfg.Slots, "slots", 0, "number of slots, with --gpus none")
	f.IntVar(&w.cfg.CPUsPerSlot, "cpus-per-slot", 0, "hardware threads of each slot (default: an even share)")
	f.StringVar(&w.memory, "memory-per-slot", "", "memory of each slot, such as 32GiB (default: an even share)")
	f.IntVar((*int)(&w.cfg.Reserve.CPUs), "reserve-cpus", 0, "minimum number of hardware threads to keep for the system; 0 for none")
	f.StringVar(&w.reserveMemory, "reserve-memory", "", "minimum memory to keep for the system")
	f.StringVar(&w.cfg.Image.AutoUpdate, "auto-update", "", "when to update the jobs' image, as a cron schedule such as '0 3 * * *', or off")
	f.StringVar(&w.cfg.Agent.Endpoint, "endpoint", "", "Buildkite's agent API (default: "+config.DefaultEndpoint+")")
}

// config returns what the flags set.
func (w *wishes) config() (config.Config, error) {
	c := w.cfg
	var errs []error
	size := func(flag, text string, to *config.Size) {
		if text == "" {
			return
		}
		v, err := config.ParseSize(text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", flag, err))
		}
		*to = v
	}
	size("--memory-per-slot", w.memory, &c.MemoryPerSlot)
	size("--reserve-memory", w.reserveMemory, &c.Reserve.Memory)
	if w.gpus != "" {
		g, err := config.ParseGPUs(w.gpus)
		if err != nil {
			errs = append(errs, fmt.Errorf("--gpus: %w", err))
		}
		c.GPUs = g
		// Some read a bare number as a count, as in `gpus: 4`, others as an index. A wrong guess
		// would lend the wrong GPUs.
		if n, err := strconv.Atoi(strings.TrimSpace(w.gpus)); err == nil && n > 0 {
			errs = append(errs, fmt.Errorf("--gpus %d may mean %[1]d GPUs or GPU %[1]d; write --gpu-count %[1]d for %[1]d GPUs, or --gpus %[1]d-%[1]d for GPU %[1]d alone", n))
		}
	}
	if w.flags != nil && w.flags.Changed("gpu-count") && c.GPUCount == 0 {
		errs = append(errs, errors.New("--gpu-count: 0 is not a number of GPUs; write 1 or more, or --gpus none --slots N for slots without GPUs"))
	}
	switch n := c.Reserve.CPUs; {
	case n < 0:
		errs = append(errs, fmt.Errorf("--reserve-cpus: %d is negative; write 0 for none, or a positive number", n))
	case n == 0 && w.flags != nil && w.flags.Changed("reserve-cpus"):
		c.Reserve.CPUs = config.NoThreads
	}
	for _, p := range config.Validate(c) {
		flag := strings.NewReplacer("reserve.", "reserve-", "agent.", "", "image.", "", "_", "-").Replace(p.Key)
		errs = append(errs, fmt.Errorf("--%s: %s", flag, p.Text))
	}
	return c, usage(errors.Join(errs...))
}

// machine holds what a command has read and planned so far.
type machine struct {
	root    string
	name    string      // of the root, in messages; "" means root itself
	asked   *configText // a configuration to use instead of the machine's
	inv     *inventory.Inventory
	cfg     config.Config
	drains  []plan.Drain  // as stored
	others  *[]plan.Drain // to plan with instead of drains
	agents  plan.Agents   // as stored
	plan    *plan.Plan
	notes   []string // about old spellings
	old     bool     // the configuration file has old spellings
	managed bool     // the configuration file is kbnode's own, or there is none
	wished  bool     // the file is missing, or lacks something that was asked for
	reshape bool     // make slots of the instances and partitions that exist now
}

// configText is a configuration before parsing.
type configText struct {
	name string
	text []byte
}

func (m *machine) live() bool { return m.root == "/" }

// open opens a file of the machine. Below any root but "/", links cannot lead out of the tree.
func (m *machine) open(path string) (*os.File, error) {
	if m.live() {
		return os.Open(path)
	}
	return os.OpenInRoot(m.root, strings.TrimPrefix(path, "/"))
}

// maxInput is the maximum size of a file that the plan is made from, in bytes.
const maxInput = 4 << 20

func (m *machine) readFile(path string) ([]byte, error) {
	f, err := m.open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, maxInput))
}

// loadConfig reads the configuration file, then the environment's variables (only on this
// machine), then the flags. Later ones override earlier ones, but must not contradict a file
// that was written by hand.
func (m *machine) loadConfig(w *wishes, env func(string) string) error {
	file := filepath.Join(cmp.Or(m.name, m.root), plan.ConfigPath)
	text, err := m.readFile(plan.ConfigPath)
	if m.asked != nil {
		file, text, err = m.asked.name, m.asked.text, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read configuration: %w", err)
	}
	missing := err != nil
	m.managed = missing || strings.Contains(firstLines(string(text), 3), plan.Marker)
	read, err := config.Read(file, text)
	if err != nil {
		return usage(err)
	}
	base := read.Config
	over, err := config.FromEnv(env)
	if err != nil {
		return usage(err)
	}
	flags, err := w.config()
	if err != nil {
		return err
	}
	m.cfg = config.Merge(config.Merge(base, over), flags)
	m.notes, m.old = read.Notes, len(read.Notes) > 0
	if n := over.GPUCount; n > 0 && flags.GPUs.IsZero() && flags.GPUCount == 0 {
		m.notes = append(m.notes, fmt.Sprintf("GPU_COUNT=%d is read as the first %[1]d GPUs; write --gpu-count %[1]d", n))
	}
	m.wished = missing || !reflect.DeepEqual(m.cfg, base)
	if !m.managed && m.wished {
		return usagef("%s was written by hand and conflicts with the given flags or variables; change the file, or leave them out", file)
	}
	return nil
}

func firstLines(text string, n int) string {
	lines := strings.SplitAfterN(text, "\n", n+1)
	return strings.Join(lines[:min(n, len(lines))], "")
}

// read reads the machine below root.
func (m *machine) read(ctx context.Context, log *slog.Logger) error {
	agentPath := m.cfg.Agent.Binary
	if agentPath == "" {
		f, err := m.open(installer.AgentPath)
		if err == nil {
			_ = f.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) { // also if it cannot be read: it is still the agent to ask
			agentPath = installer.AgentPath
		}
	}
	inv, err := inventory.Read(ctx, inventory.Options{
		Root: m.root, AgentPath: agentPath, DockerSocket: m.cfg.Docker.Socket, Log: log,
	})
	if err != nil {
		return err
	}
	m.inv = inv
	return nil
}

// bindings returns the stored bindings of slots, or nil on a new machine.
func (m *machine) bindings() ([]plan.Binding, error) {
	switch text, err := m.readFile(plan.BindingsPath); {
	case err == nil:
		return plan.ParseBindings(text)
	case !errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("read slot bindings: %w", err)
	}
	return nil, nil
}

// missing returns what keeps the machine from being a node. What cannot be read now counts as it
// was last planned.
func (m *machine) missing() ([]string, error) {
	kept, err := m.bindings()
	if err != nil {
		return nil, err
	}
	inv, err := plan.Recall(m.inv, kept)
	if err != nil {
		return nil, err
	}
	return installer.Preflight(inv), nil
}

// think builds the plan.
func (m *machine) think() error {
	bindings, err := m.bindings()
	if err != nil {
		return err
	}
	m.drains = nil
	switch text, err := m.readFile(plan.DrainsPath); {
	case err == nil:
		if m.drains, err = plan.ParseDrains(text); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read drained slots: %w", err)
	}
	m.agents = plan.Agents{}
	switch text, err := m.readFile(plan.AgentsPath); {
	case err == nil:
		if m.agents, err = plan.ParseAgents(text); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read agents: %w", err)
	}
	if m.others != nil {
		m.drains = *m.others
	}
	in := plan.Input{Inventory: m.inv, Config: &m.cfg, Bindings: bindings, Drains: m.drains, Agents: m.agents, Binary: unitBinary, Version: Version(), Reshape: m.reshape}
	if m.live() {
		exe, err := os.Executable()
		if err != nil {
			return fmt.Errorf("find kbnode's own path: %w", err)
		}
		in.Binary = exe
	}
	wished := m.wished || m.reshape && m.old // an install writes the new spelling
	in.ConfigKept = m.managed && !wished
	if m.managed && wished {
		var err error
		if in.ConfigText, err = config.Render(m.cfg, plan.Marker+". kbnode install writes its flags here; to manage the file yourself, edit it and delete this line."); err != nil {
			return err
		}
	}
	p, err := plan.Build(in)
	if err != nil {
		return err
	}
	p.Warnings = append(append([]string{}, m.notes...), p.Warnings...)
	m.plan = p
	return nil
}
