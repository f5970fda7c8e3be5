package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

func newInventory(s term.Streams) *cobra.Command {
	var root, capture string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "inventory",
		Short: "Show what GPUs, CPUs, memory and software this machine has",
		Example: `  kbnode inventory
  kbnode inventory --capture node.txtar     for a bug report
  kbnode inventory --root node.txtar        read a capture`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := oneOf(cmd, "capture", "json")
			if capture != "-" { // standard output
				err = errors.Join(err, term.CheckFolder("--capture", capture))
			}
			if err != nil {
				return err
			}
			n, closeRoot, err := machineAt(s, root)
			if err != nil {
				return err
			}
			defer closeRoot()
			if isSame(root, capture) {
				return term.Usagef("--capture %s would replace what --root reads; write another name", text.Line(capture, 300))
			}
			if capture != "" {
				return captureMachine(cmd.Context(), s, n.Root, capture)
			}
			inv, err := detect.Read(cmd.Context(), detect.Options{Root: n.Root})
			if err != nil {
				return err
			}
			return inventoryDoc.Print(s, asJSON, inv, func() { printInventory(s, inv) })
		},
	}
	rootFlag(cmd, &root)
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", inventoryDoc)
	cmd.Flags().StringVar(&capture, "capture", "", "capture the machine to this file, as text for tests and bug reports")
	return cmd
}

// machineAt opens the machine in a directory or a captured file.
func machineAt(s term.Streams, root string) (n *node.Node, closeRoot func(), err error) {
	dir, shut, err := detect.Open(root)
	if err != nil {
		return nil, nil, err
	}
	n = here(s)
	n.Root, n.Name, n.Recorded = filepath.Clean(dir), root, dir != root
	return n, func() { _ = shut() }, nil
}

// recordedAt opens the machine recorded in a file, or this one. A directory may have links that lead out of it.
func recordedAt(s term.Streams, root string) (n *node.Node, closeRoot func(), err error) {
	n, closeRoot, err = machineAt(s, root)
	if err == nil && !n.Live() && !n.Recorded {
		closeRoot()
		if files, _ := filepath.Glob(filepath.Join(root, "*.txtar")); len(files) > 0 {
			return nil, nil, term.Usagef("%s is a directory with recorded machines; name one, such as --root %s", root, term.Word(files[0]))
		}
		if _, err := os.Stat(filepath.Join(root, "proc")); err != nil {
			return nil, nil, term.Usagef("%s is a directory without a machine's /proc; give a file made by kbnode inventory --capture", root)
		}
		return nil, nil, fmt.Errorf("%s is a directory; make a file of it with kbnode inventory --root %[1]s --capture FILE, and give --root FILE", root)
	}
	return n, closeRoot, err
}

// isSame reports whether two names are of the same file.
func isSame(a, b string) bool {
	first, err := os.Stat(a)
	second, err2 := os.Stat(b)
	return err == nil && err2 == nil && os.SameFile(first, second)
}

// printRecorded begins an answer about a recorded machine with its file, so that no one takes it for this one's.
func printRecorded(w io.Writer, file string) {
	if file != "" {
		term.Printf(w, "recorded machine %s\n", text.Line(file, 4096))
	}
}

// environment returns os.Getenv for this machine. Another one has none: the variables are this machine's.
func environment(n *node.Node) func(string) string {
	if n.Live() {
		return os.Getenv
	}
	return func(string) string { return "" }
}

// rootFlag adds --root to a command that only reads.
func rootFlag(cmd *cobra.Command, root *string) {
	cmd.Flags().StringVar(root, "root", "/", "read a machine from this directory or capture")
}

// recordedFlag adds --root to a command that asks more of a machine than its files.
func recordedFlag(flags *pflag.FlagSet, root *string) {
	flags.StringVar(root, "root", "/", "read a recorded machine from this file, without root; what it does not say is unknown")
}

func captureMachine(ctx context.Context, s term.Streams, root, file string) error {
	var b bytes.Buffer
	if err := detect.Capture(ctx, detect.Options{Root: root}, &b); err != nil {
		return err
	}
	if file == "-" {
		_, err := s.Out.Write(b.Bytes())
		return err
	}
	if err := renameio.WriteFile(file, b.Bytes(), os.FileMode(0o644)); err != nil {
		return fmt.Errorf("write capture: %w", err)
	}
	term.Printf(s.Err, "wrote %s (%s); it contains GPU UUIDs, but no host name and no serial number\n", file, text.Bytes(int64(b.Len())))
	return nil
}

func printInventory(s term.Streams, inv *inventory.Inventory) {
	w := s.Out
	term.Printf(w, "%s  %s  kernel %s  %s\n", cmp.Or(inv.Hostname, "(no host name)"), cmp.Or(inv.OS.PrettyName, inv.OS.ID, "unknown system"), cmp.Or(inv.Kernel, "unknown"), inv.Arch)
	cores := map[int]bool{}
	packages := map[int]bool{}
	for _, c := range inv.CPU.List {
		cores[c.Core], packages[c.Package] = true, true
	}
	allowed := ""
	if inv.CPU.Allowed != inv.CPU.Online {
		allowed = ", allowed " + inv.CPU.Allowed
	}
	term.Printf(w, "CPU     %s: %s, %d cores, %d threads online (%s)%s\n", cmp.Or(inv.CPU.Model, "unknown model"), text.Count(len(packages), "package"), len(cores), len(inv.CPU.List), inv.CPU.Online, allowed)
	term.Printf(w, "Memory  %s\n", text.Bytes(inv.Memory.TotalBytes))
	for _, n := range inv.Memory.Nodes {
		term.Printf(w, "  NUMA node %d: %s, CPUs %s%s\n", n.ID, text.Bytes(n.MemoryBytes), cmp.Or(n.CPUs, "none"), suffix(", memory of GPU ", n.GPU))
	}
	if n := inv.NVIDIA; n != nil {
		term.Printf(w, "NVIDIA  driver %s, CUDA %s, read from %s\n", cmp.Or(n.DriverVersion, "not loaded"), cmp.Or(n.CUDAVersion, "unknown"), n.Source)
	}
	if a := inv.AMD; a != nil {
		term.Printf(w, "AMD     driver %s, KFD %s\n", cmp.Or(a.DriverVersion, "of the kernel"), map[bool]string{true: "present", false: "absent"}[a.KFD])
	}
	sw := inv.Software
	term.Printf(w, "systemd %s, cgroup %s, Docker %s%s, buildkite-agent %s, git %s\n",
		cmp.Or(sw.Systemd, "none"), map[bool]string{true: "v2", false: "v1 or none"}[sw.CgroupV2],
		cmp.Or(sw.Docker.Version, "none"), dockerDetail(sw.Docker), cmp.Or(sw.Agent.Version, "none"), cmp.Or(sw.Git, "none"))
	term.Printf(w, "\n")
	if len(inv.GPUs) == 0 {
		term.Printf(w, "no GPU\n")
	} else {
		t := term.NewList(w, "GPU", "Model", "PCI", "UUID", "Memory", "NUMA", "State")
		t.Spare = []string{"UUID", "PCI"}
		for i, g := range inv.GPUs {
			t.Row(i, g.Model, g.PCI, cmp.Or(g.UUID, "-"), text.Bytes(g.MemoryBytes), nodeText(g.NUMANode), gpuState(g))
		}
		t.Print()
	}
	for _, p := range inv.Problems {
		term.Printf(s.Err, "kbnode: %s: %s\n", p.Subject, p.Detail)
	}
}

func suffix(before, s string) string {
	if s == "" {
		return ""
	}
	return before + s
}

func nodeText(n int) string {
	if n < 0 {
		return "-"
	}
	return fmt.Sprint(n)
}

func dockerDetail(d inventory.Docker) string {
	if d.Version == "" {
		return ""
	}
	detail := []string{"cgroup driver " + d.CgroupDriver}
	if d.CDI {
		detail = append(detail, "CDI")
	}
	return " (" + strings.Join(detail, ", ") + ")"
}

func gpuState(g inventory.GPU) string {
	if !g.Healthy {
		return "dead: " + g.Error
	}
	state := []string{"ok"}
	if g.MIGMode == "on" {
		state = append(state, fmt.Sprintf("MIG, %d instances", len(g.MIG)))
	}
	if g.ComputePartition != "" {
		state = append(state, g.ComputePartition)
	}
	return strings.Join(state, ", ")
}
