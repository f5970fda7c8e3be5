// Package cli implements kbnode's commands: flags, output and exit codes. It makes no decision
// that another package could make.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/operator"
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job/environ"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Streams are the command line's standard streams.
type Streams = term.Streams

// Main runs one command line and returns its exit code.
func Main(args []string, s term.Streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s.Root = os.Geteuid() == 0
	return run(ctx, args, s)
}

func run(ctx context.Context, args []string, s term.Streams) int {
	s.Raw, s.Piped = s.Out, limit.Reader(ctx, s.In)
	out := &term.Answer{To: s.Out}
	s.Out, s.Typed = out, args
	root := newRoot(s)
	s.Commands = root
	root.SetArgs(append([]string{}, args...)) // nil would mean this process's own
	err := hints{s}.command(root)
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil && out.Err != nil {
		err = fmt.Errorf("write output: %w", out.Err)
	}
	if err == nil {
		return term.ExitDone
	}
	if missing := requiredFlags().FindStringSubmatch(err.Error()); missing != nil { // cobra's error has no type
		err = term.Usagef("--%s is missing; add it", strings.ReplaceAll(missing[1], `", "`, " and --"))
	}
	err = hints{s}.retyped(err)
	code := term.ExitNo
	if exit, ok := errors.AsType[*term.ExitError](err); ok {
		code = exit.Code
	} else if input, ok := errors.AsType[*config.InputError](err); ok && input != nil {
		code = term.ExitUsage
	} else if name, ok := text.Misnamed(err); ok && slices.ContainsFunc(args, func(word string) bool { return word == name || strings.HasSuffix(word, "="+name) }) {
		code = term.ExitUsage
	}
	if msg := term.Hide(err.Error(), term.Secrets(args)); msg != "" {
		for line := range strings.Lines(msg) {
			term.Printf(s.Err, "kbnode: %s\n", strings.TrimRight(line, "\n"))
		}
	}
	return code
}

var requiredFlags = lazy.Regexp(`^required flag\(s\) "(.*)" not set$`)

func newRoot(s term.Streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "kbnode",
		Short: "Turn a GPU server into isolated Buildkite agents, one per GPU",
		Long:  "kbnode turns a GPU server into isolated Buildkite agents, one per GPU.",
		Example: `  sudo kbnode install --queue b200     set up the node, or update it
  sudo kbnode status                   show what runs on it
  sudo kbnode uninstall                remove kbnode and restore the machine`, // for the manual page
		Version:       readVersion().String(),
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	s.Commands = root
	hint := hints{s}
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(hint.flag)
	sudo := term.AsRoot
	install := sudo(newInstall(s), append([]string{"BUILDKITE_AGENT_TOKEN", "GPU_TYPE", "NODE_NAME", "GPU_COUNT", "CPUS_PER_GPU", "RAM_PER_GPU"}, environ.Network...)...)
	doctor := sudo(newDoctor(s), append([]string{"BUILDKITE_API_TOKEN", "BUILDKITE_API_URL"}, environ.Network...)...)
	upgrade := sudo(newUpgrade(s), environ.Network...)
	addGroup(root, "Set up", install, doctor, newPlan(s), newInventory(s), newConfig(s), newBundle(s), sudo(newSelftest(s)), sudo(newUninstall(s)))
	addGroup(root, "Operate", sudo(newStatus(s)), sudo(newDrain(s)), sudo(newResume(s)), sudo(newLogs(s)), newEvents(s), sudo(newNotify(s)), sudo(newImage(s)), upgrade)
	addGroup(root, "Write kernels", operator.NewEvaluate(s), operator.NewSubmit(s), operator.NewCancel(s))
	addGroup(root, "Run a competition", operator.NewQueue(s), operator.NewE2E(s), newPipeline(s))
	addGroup(root, plumbing, operator.NewRunner(s), sudo(newReconcile(s)), newVersion(s))
	root.AddCommand(operator.NewPayload(s), sudo(newDaemon(s)), newClear(), newRunJob(s), newRunHook(), newDisk(s), newHook(s), newProbe(s), newBootstrap(s))
	root.SetHelpCommandGroupID(plumbing)
	root.SetCompletionCommandGroupID(plumbing)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	dropPowerShell(root)
	for path, words := range synonyms {
		if cmd, _, err := root.Find(strings.Fields(path)); err == nil {
			cmd.SuggestFor = words
		}
	}
	root.SetUsageTemplate(rootUsage + root.UsageTemplate() + "{{end}}")
	checkArgs(root, hint)
	complete(root)
	if width, ok := term.Terminal(s.Out); ok {
		fitHelp(root, s.Out, min(width, proseWidth))
	}
	return root
}

// Commands returns all commands, for generating documents. They print nothing.
func Commands() *cobra.Command {
	return newRoot(term.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard})
}

// The linker sets version, commit and date (Makefile).
var version, commit, date string

type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"`
	Go      string `json:"go"`
	Arch    string `json:"arch"`
}

// Version returns kbnode's version: "1.2.3", or "0.0.0-dev" for a build without one.
func Version() string { return cmp.Or(version, "0.0.0-dev") }

func readVersion() versionInfo {
	v := versionInfo{Version: Version(), Commit: commit, Date: date, Go: runtime.Version(), Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok && v.Commit == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return v
}

func (v versionInfo) String() string {
	return fmt.Sprintf("kbnode %s (%s, %s)", v.Version, cmp.Or(v.Commit, "unknown commit"), v.Arch)
}

func newVersion(s term.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of kbnode",
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			return versionDoc.Print(s, asJSON, v, func() { term.Printf(s.Out, "%s\n", v) })
		},
	}
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", versionDoc)
	return cmd
}
