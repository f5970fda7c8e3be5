package cli

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/node"
)

// packagedBinary is where the .deb and the .rpm install kbnode.
const packagedBinary = "/usr/bin/kbnode"

// configFlags are the flags that correspond to settings of the configuration file.
type configFlags struct {
	cfg           config.Config
	flags         *pflag.FlagSet // nil means no flags
	gpus          string
	memory        string
	reserveMemory string
}

func (w *configFlags) register(cmd *cobra.Command) {
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
func (w *configFlags) config() (config.Config, error) {
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

// here returns the machine that kbnode runs on.
func here(s Streams) *node.Node {
	return &node.Node{Root: "/", Version: Version(), Log: s.logger(), Say: s.progress}
}

// load loads a machine's configuration, with variables of the environment and these flags.
func (w *configFlags) load(n *node.Node, env func(string) string) error {
	flags, err := w.config()
	if err != nil {
		return err
	}
	err = n.Load(env, flags)
	if _, ok := errors.AsType[*config.InputError](err); ok {
		return usage(err)
	}
	return err
}
