// Package cli implements kbnode's commands: flags, output and exit codes. It makes no decision
// that another package could make.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/config"
)

// Exit codes of every command.
const (
	exitDone  = 0
	exitNo    = 1
	exitUsage = 2
)

// Streams are a command's standard streams: Out is for the answer, and Err for everything else.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer

	raw   io.Writer // Out without its errors, for logs
	typed []string  // the arguments of the command line
	root  bool      // the user is root
}

// exitError ends a command with its own exit code. An empty message means that everything was
// already printed.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usage turns an error into a usage error.
func usage(err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitUsage, err: err}
}

func usagef(format string, args ...any) error { return usage(fmt.Errorf(format, args...)) }

// Main runs one command line and returns its exit code.
func Main(args []string, s Streams) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s.root = os.Geteuid() == 0
	return run(ctx, args, s)
}

func run(ctx context.Context, args []string, s Streams) int {
	s.raw = s.Out
	out := &answer{to: s.Out}
	s.Out, s.typed = out, args
	hint := hints{args}
	root := newRoot(s, hint)
	root.SetArgs(append([]string{}, args...)) // nil would mean this process's own
	err := cmp.Or(hint.command(root), hint.dash(root))
	if err == nil {
		err = root.ExecuteContext(ctx)
	}
	if err == nil && out.err != nil {
		err = fmt.Errorf("write output: %w", out.err)
	}
	if err == nil {
		return exitDone
	}
	code := exitNo
	if exit, ok := errors.AsType[*exitError](err); ok {
		code = exit.code
	} else if input, ok := errors.AsType[*config.InputError](err); ok && input != nil || isUsage(err) {
		code = exitUsage
	}
	if msg := hide(err.Error(), secrets(args)); msg != "" {
		for line := range strings.Lines(msg) {
			printf(s.Err, "kbnode: %s\n", strings.TrimRight(line, "\n"))
		}
	}
	return code
}

// isUsage recognizes cobra's error for a missing required flag, which has no type.
func isUsage(err error) bool { return strings.HasPrefix(err.Error(), "required flag") }

// checkArgs turns what a command says about its arguments into a usage error that says what to
// type instead.
func checkArgs(cmd *cobra.Command, hint hints) {
	for _, sub := range cmd.Commands() {
		checkArgs(sub, hint)
	}
	check := cmd.Args
	if check == nil {
		if cmd.Name() == "help" {
			return
		}
		check = cobra.NoArgs
	}
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		err := check(cmd, args)
		var better error
		switch {
		case err == nil:
			if strings.Contains(cmd.Use, "[SLOT") {
				return hint.slots(cmd, args)
			}
			return nil
		case len(args) > 0 && check(cmd, nil) == nil && check(cmd, args[:1]) != nil:
			better = hint.unknownArgument(cmd, args[0])
		case len(args) > 1 && check(cmd, args[:1]) == nil:
			better = hint.extraArguments(cmd, args[1:])
		}
		return cmp.Or(better, usagef("%w; see %s --help", err, cmd.CommandPath()))
	}
}

func newRoot(s Streams, hint hints) *cobra.Command {
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
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetIn(s.In)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	root.SetFlagErrorFunc(hint.flag)
	addGroup(root, "Set up", newInstall(s), newDoctor(s), newPlan(s), newInventory(s), newConfig(s), newSelftest(s), newUninstall(s))
	addGroup(root, "Operate", newStatus(s), newDrain(s), newResume(s), newLogs(s), newEvents(s), newImage(s), newUpgrade(s))
	addGroup(root, "Competition", newSubmit(s), newQueue(s), newE2E(s), newPipeline(s))
	addGroup(root, "In jobs", newRunner(s), newPayload(s))
	addGroup(root, plumbing, newReconcile(s), newDaemon(s), newVersion(s))
	root.AddCommand(newAgentExec(s), newGuard(s), newDisk(s), newHook(s), newProbe(s), newBootstrap(s))
	for _, cmd := range root.Commands() {
		cmd.SuggestFor = synonyms[cmd.Name()]
	}
	root.SetHelpCommandGroupID(plumbing)
	root.SetCompletionCommandGroupID(plumbing)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetUsageTemplate(rootUsage + root.UsageTemplate() + "{{end}}")
	checkArgs(root, hint)
	complete(root)
	if width, ok := terminal(s.Out); ok {
		fitHelp(root, s.Out, min(width, proseWidth))
	}
	return root
}

// Commands returns all commands, for generating documents. They print nothing.
func Commands() *cobra.Command {
	return newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, hints{})
}

// logger returns a log to Err. In a unit it omits the time, which the journal adds.
func (s Streams) logger() *slog.Logger {
	opts := &slog.HandlerOptions{}
	if os.Getenv("JOURNAL_STREAM") != "" {
		opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(s.Err, opts))
}

// progress prints a line about work in progress.
func (s Streams) progress(format string, args ...any) {
	printf(s.Err, "  "+format+"\n", args...)
}

// warn prints a line about something that did not stop the work.
func (s Streams) warn(format string, args ...any) {
	printf(s.Err, "kbnode: warning: "+format+"\n", args...)
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

func newVersion(s Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of kbnode",
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			return s.print(asJSON, v, func() { printf(s.Out, "%s\n", v) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
