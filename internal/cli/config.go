package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newConfig(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Check a configuration file, or show a node's configuration",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	check, show := newConfigCheck(s), newConfigShow(s)
	cmd.AddCommand(check, show)
	return cmd
}

// configCheck is the JSON of kbnode config check; docs/configuration.md describes it.
type configCheck struct {
	File     string         `json:"file"`
	OK       bool           `json:"ok"`
	Keys     int            `json:"keys"`
	Faults   []config.Fault `json:"faults"`
	Warnings []string       `json:"warnings"`
}

func newConfigCheck(s Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check [FILE]",
		Short: "Check a configuration file for errors",
		Long: `Check a configuration file as strictly as kbnode install does, and report every
unknown key, wrong type and bad value, with its line and what to write instead.
FILE defaults to ` + plan.ConfigPath + `, and - is standard input.

Exit code 0 if the file is valid, 1 if not. It needs neither root nor the machine
that the file is for.`,
		Example: `  kbnode config check
  kbnode config check node.yaml
  render-node b200-17 | kbnode config check --json -`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			name := plan.ConfigPath
			if len(args) > 0 {
				name = args[0]
			}
			text, err := s.configText(name)
			if err != nil {
				return err
			}
			return checkConfig(s, configName(name), text, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// configName returns what messages call a file, which may be standard input.
func configName(name string) string {
	if name == "-" {
		return "standard input"
	}
	return name
}

// configText reads a file, or standard input.
func (s Streams) configText(name string) ([]byte, error) {
	in := s.In
	if name != "-" {
		f, err := os.Open(name)
		if errors.Is(err, fs.ErrNotExist) && name == plan.ConfigPath {
			return nil, fmt.Errorf("%s does not exist; name the file to check", name)
		}
		if err != nil {
			return nil, fmt.Errorf("read configuration: %w", err)
		}
		defer func() { _ = f.Close() }()
		in = f
	}
	text, err := io.ReadAll(io.LimitReader(in, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return text, nil
}

func checkConfig(s Streams, name string, text []byte, asJSON bool) error {
	f, err := config.Read(name, text)
	report := configCheck{File: name, OK: err == nil, Keys: len(f.Lines), Faults: []config.Fault{}, Warnings: []string{}}
	if faults, ok := errors.AsType[*config.Faults](err); ok {
		report.Faults = faults.List
	}
	report.Warnings = append(report.Warnings, f.Notes...)
	if err == nil && f.Config.Queue == "" {
		report.Warnings = append(report.Warnings, "no queue is set, and kbnode install needs one; add a line such as queue: b200")
	}
	if asJSON {
		if err := printJSON(s.Out, report); err != nil {
			return err
		}
	}
	switch {
	case err != nil && asJSON:
		return &exitError{code: exitNo}
	case err != nil:
		return err
	case asJSON:
		return nil
	}
	printf(s.Out, "%s: OK (%d %s)\n", name, report.Keys, plural(report.Keys, "key", "keys"))
	for _, w := range report.Warnings {
		s.warn("%s: %s", name, w)
	}
	return nil
}

func newConfigShow(s Streams) *cobra.Command {
	var root string
	var asJSON, origin bool
	cmd := &cobra.Command{
		Use:   "show",
		Short: "Show every configuration key, its value and its origin",
		Long: `Show every configuration key, its value and its origin: the file, an environment
variable that kbnode install would use, or the default. The output is itself a
configuration file.

Users, passwords and query strings in URLs are not shown. Where a default depends on the
machine, kbnode plan shows the actual value.`,
		Example: `  kbnode config show >node.yaml
  kbnode config show --origin | grep -v default
  kbnode config show --json | jq -r .config.queue`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if asJSON && origin {
				return usagef("--json includes the origins; leave out --origin")
			}
			dir, closeRoot, err := inventory.Open(root)
			if err != nil {
				return err
			}
			defer func() { _ = closeRoot() }()
			m := &machine{root: filepath.Clean(dir), name: root}
			env := os.Getenv
			if !m.live() {
				env = func(string) string { return "" } // the variables are this machine's
			}
			return showConfig(s, m, env, asJSON, origin)
		},
	}
	rootFlag(cmd, &root)
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&origin, "origin", false, "print a table with a column for the origins")
	return cmd
}

// configShow is the JSON of kbnode config show; docs/configuration.md describes it.
type configShow struct {
	File   string                   `json:"file"` // "" without one
	Config map[string]any           `json:"config"`
	Origin map[string]config.Origin `json:"origin"` // by dotted path
	Hidden []string                 `json:"hidden"`
}

func showConfig(s Streams, m *machine, env func(string) string, asJSON, origin bool) error {
	file := filepath.Join(cmp.Or(m.name, m.root), plan.ConfigPath)
	text, err := m.readFile(plan.ConfigPath)
	missing := errors.Is(err, fs.ErrNotExist)
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("read configuration: %w; use sudo", err)
	}
	if err != nil && !missing {
		return fmt.Errorf("read configuration: %w", err)
	}
	f, err := config.Read(file, text)
	if err != nil {
		return err
	}
	over, err := config.FromEnv(env)
	if err != nil {
		return err
	}
	list, err := config.Effective(f, over)
	if err != nil {
		return err
	}
	if missing {
		file = ""
	} else if !strings.Contains(firstLines(string(text), 3), plan.Marker) && !reflect.DeepEqual(config.Merge(f.Config, over), f.Config) {
		s.warn("%s was written by hand and conflicts with the environment; kbnode install would refuse it", plan.ConfigPath)
	}
	if asJSON {
		return printJSON(s.Out, configJSON(file, list))
	}
	seen := func(text string) string { return text }
	if _, ok := terminal(s.Out); ok {
		seen = payload.EscapeInvisible
	}
	if origin {
		t := newList(s.Out, "Key", "Value", "Origin")
		t.wraps = "Value"
		for _, v := range list {
			t.row(v.Key, seen(valueText(v.Value)), v.From())
		}
		t.print()
		return nil
	}
	out := fmt.Sprintf("# The configuration of this node. File: %s\n", cmp.Or(file, "none"))
	body, err := config.Text(list)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(list, func(v config.Setting) bool { return v.Hidden }) {
		out += "# Secrets are shown as xxxxx: restore them before you use this file.\n"
	}
	verbatim(s.Out, seen(out+body))
	return nil
}

func configJSON(file string, list []config.Setting) configShow {
	v := configShow{File: file, Config: map[string]any{}, Origin: map[string]config.Origin{}, Hidden: []string{}}
	for _, s := range list {
		v.Origin[s.Key] = s.Origin
		if s.Hidden {
			v.Hidden = append(v.Hidden, s.Key)
		}
		if s.Value == nil {
			continue
		}
		into, key := v.Config, s.Key
		if group, name, nested := strings.Cut(s.Key, "."); nested {
			if v.Config[group] == nil {
				v.Config[group] = map[string]any{}
			}
			into, key = v.Config[group].(map[string]any), name
		}
		into[key] = s.Value
	}
	return v
}

// valueText returns a value for a cell of a table.
func valueText(v any) string {
	switch v := v.(type) {
	case nil:
		return "-"
	case []any:
		var items []string
		for _, item := range v {
			items = append(items, fmt.Sprint(item))
		}
		if line := strings.Join(items, ", "); len(line) < 40 {
			return line
		}
		return strings.Join(items, "\n")
	}
	return fmt.Sprint(v)
}
