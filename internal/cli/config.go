package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

func newConfig(s term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or show a node's configuration",
	}
	cmd.AddCommand(newConfigCheck(s), newConfigShow(s))
	return cmd
}

func newConfigCheck(s term.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file for errors",
		Long: `Check a configuration file as strictly as kbnode install does, and report every
error with its line and what to write instead. FILE defaults to
` + plan.ConfigPath + `; - is standard input.`,
		Example: `  kbnode config check node.yaml
  render-node b200-17 | kbnode config check --json -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := plan.ConfigPath
			if len(args) > 0 {
				name = args[0]
			}
			text, err := configText(cmd.Context(), s, name)
			if err != nil {
				return err
			}
			return checkConfig(s, configName(name), text, asJSON)
		},
	}
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", configCheckDoc)
	return cmd
}

// configName returns what messages call a file, which may be standard input.
func configName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// configText reads a file, which may be a pipe that no one opens for writing, until ctx ends.
func configText(ctx context.Context, s term.Streams, name string) ([]byte, error) {
	in := s.Piped
	if name != "-" {
		f, err := limit.Until(ctx, func() (*os.File, error) { return os.Open(name) })
		if errors.Is(err, fs.ErrNotExist) && name == plan.ConfigPath {
			return nil, fmt.Errorf("%s does not exist; name the file to check, or write - for standard input", name)
		}
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", text.FileError(name, err, "fix the path, or write - for standard input"))
		}
		defer func() { _ = f.Close() }()
		in = limit.Reader(ctx, f)
	}
	doc, err := io.ReadAll(io.LimitReader(in, node.MaxInput))
	if name != "-" {
		err = text.FileError(name, err, "")
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if name == "-" && len(doc) == 0 {
		return nil, term.Usagef("standard input is empty; pipe the file in, or name it")
	}
	return doc, nil
}

func checkConfig(s term.Streams, name string, doc []byte, asJSON bool) error {
	report, err := config.CheckFile(name, doc)
	if over := loanOver(name, doc, time.Now()); err == nil && over != "" {
		report.Warnings = append(report.Warnings, over)
	}
	if asJSON {
		return term.ExitUnless(err == nil, configCheckDoc.Print(s, true, report, nil))
	}
	if err != nil {
		return err
	}
	term.Printf(s.Out, "%s: OK (%d %s)\n", name, report.Keys, text.Plural(report.Keys, "key", "keys"))
	for _, w := range report.Warnings {
		s.Warn("%s: %s", name, w)
	}
	return nil
}

// loanOver says that the loan of a configuration has ended; "" if not.
func loanOver(name string, doc []byte, now time.Time) string {
	c, err := config.Parse(name, doc)
	if err != nil {
		return ""
	}
	end, err := text.ParseDate(c.Loan.Until, now.Location())
	if err != nil || end.After(now) {
		return ""
	}
	return fmt.Sprintf("loan.until: %s is over, so all slots of a node take no jobs; write a later date, or leave it out", c.Loan.Until)
}

func newConfigShow(s term.Streams) *cobra.Command {
	var root string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show the configuration of this node, with the defaults",
		Long: `Show the configuration of this node, with the defaults, as a configuration file. A key
that is not shown has no value; docs/configuration.md says what then holds. Users,
passwords and query strings in URLs are not shown.`,
		Example: `  kbnode config show >node.yaml
  kbnode config show --json | jq -r .config.queue`,
		RunE: func(*cobra.Command, []string) error {
			n, closeRoot, err := machineAt(s, root)
			if err != nil {
				return err
			}
			defer closeRoot()
			return showConfig(s, n, environment(n), asJSON)
		},
	}
	rootFlag(cmd, &root)
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", configShowDoc)
	return cmd
}

func showConfig(s term.Streams, n *node.Node, env func(string) string, asJSON bool) error {
	file := filepath.Join(cmp.Or(n.Name, n.Root), plan.ConfigPath)
	if _, err := n.ReadFile(plan.ConfigPath); errors.Is(err, fs.ErrNotExist) {
		file = ""
	}
	err := n.Load(env, config.Config{})
	if errors.Is(err, node.ErrByHand) {
		s.Warn("%v; kbnode install would refuse it", err)
		err = nil
	}
	if input, ok := errors.AsType[*config.InputError](err); ok {
		return input.Err // as of config check, exit code 1
	}
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w; use sudo", err)
	}
	if err != nil {
		return err
	}
	shown, err := config.Show(file, n.Config)
	if err != nil {
		return err
	}
	return configShowDoc.Print(s, asJSON, shown, func() {
		if _, ok := term.Terminal(s.Out); ok {
			shown.Text = text.Block(shown.Text)
		}
		term.Verbatim(s.Out, shown.Text)
	})
}

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
	f.StringVar(&w.cfg.Loan.Until, "loan-until", "", "date from which on slots take no jobs, such as 2026-12-31 (default: none)")
	f.StringVar(&w.cfg.Agent.Endpoint, "endpoint", "", "Buildkite's agent API (default: "+config.DefaultEndpoint+")")
}

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
		// Some read a bare number as a count, others as an index. A wrong guess would lend the wrong GPUs.
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
		flag := strings.NewReplacer("reserve.", "reserve-", "agent.", "", "image.", "", "loan.", "loan-", "_", "-").Replace(p.Key)
		errs = append(errs, fmt.Errorf("--%s: %s", flag, p.Text))
	}
	return c, term.Usage(errors.Join(errs...))
}

func here(s term.Streams) *node.Node {
	return &node.Node{Root: "/", Version: Version(), Log: s.Logger(), Say: s.Progress}
}

// load loads a machine's configuration, with variables of the environment and these flags.
func (w *configFlags) load(n *node.Node, env func(string) string) error {
	flags, err := w.config()
	if err != nil {
		return err
	}
	err = n.Load(env, flags)
	if _, ok := errors.AsType[*config.InputError](err); ok {
		return term.Usage(err)
	}
	return err
}
