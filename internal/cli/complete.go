package cli

import (
	"os"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/operate/e2e"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// flagValues complete the values of flags, which mean the same in every command. Other flags
// take free text and get no file names.
var flagValues = map[string]cobra.CompletionFunc{
	"agent-binary": fileValues, "bundle": fileValues, "kbnode": fileValues, "output": fileValues, "capture": fileValues, "config": fileValues, "dockerfile": fileValues, "problem": operator.ProblemValues,
	"payload": fileValues, "result": fileValues, "root": fileValues, "token-file": fileValues, "workdir": dirValues, "corpus": dirValues,
	"gpus": values("all"), "auto-update": values("off"), "vendor": values("nvidia", "amd"), "mode": values(task.Modes...),
	"slot": numberValues, gpuIndex: numberValues, "only": checkValues, "skip": checkValues, "explain": checkValues,
}

var argValues = map[string]cobra.CompletionFunc{
	"drain": nameValues, "resume": nameValues, "logs": nameValues, "e2e": values(e2e.Parts...),
	"submit": fileValues, "evaluate": fileValues, "cheats": fileValues, "encode": fileValues, "decode": fileValues, "check": fileValues,
}

func complete(cmd *cobra.Command) {
	cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = argValues[cmd.Name()]
	}
	for name, values := range flagValues {
		_ = cmd.RegisterFlagCompletionFunc(name, values) // fails if the command has no such flag or completes it itself
	}
	for _, sub := range cmd.Commands() {
		complete(sub)
	}
}

// dropPowerShell removes a completion for a shell of other systems.
func dropPowerShell(root *cobra.Command) {
	if cmd, _, err := root.Find([]string{"completion", "powershell"}); err == nil {
		cmd.Parent().RemoveCommand(cmd)
	}
}

func fileValues(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func dirValues(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// values offers those of all that were not typed yet.
func values(all ...string) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		left := slices.DeleteFunc(slices.Clone(all), func(v string) bool { return slices.Contains(args, v) })
		return left, cobra.ShellCompDirectiveNoFileComp
	}
}

// checkValues offers the groups and checks of kbnode doctor.
func checkValues(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	all := slices.Clone(doctor.Groups)
	for _, c := range doctor.All() {
		all = append(all, cobra.CompletionWithDesc(c.ID, c.About))
	}
	return all, cobra.ShellCompDirectiveNoFileComp
}

func nameValues(cmd *cobra.Command, args []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return values(slots(plan.UnitDir, plan.SlotName)...)(cmd, args, typed)
}

func numberValues(cmd *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return values(slots(plan.UnitDir, strconv.Itoa)...)(cmd, nil, typed)
}

// slots returns this node's slots, found by their units, which anyone may list.
func slots(dir string, spell func(k int) string) []string {
	units, _ := os.ReadDir(dir)
	var found []int
	for _, u := range units {
		if k, ok := plan.OwnsUnit(u.Name()); ok && u.Name() == plan.AgentUnit(k) {
			found = append(found, k)
		}
	}
	slices.Sort(found)
	var names []string
	for _, k := range found {
		names = append(names, spell(k))
	}
	return names
}
