package operator

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/compare"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// exitNoResult is the runner's exit code if it could not write the result.
const exitNoResult = 3

// NewEvaluate returns kbnode evaluate.
func NewEvaluate(s term.Streams) *cobra.Command {
	var l localFlags
	var o runner.Options
	var c compareFlags
	cmd := &cobra.Command{
		Use:   "evaluate [SUBMISSION [OTHER]]",
		Short: "Evaluate a submission on this machine, or compare two",
		Long: `Evaluate the file SUBMISSION (default: the problem's own) on this machine, as a node
would in a job, and show the result.

With two files, test both, evaluate them in turn in rounds, and say whether OTHER is
faster: by how much, with 95 % intervals and a plot. Mode is benchmark or leaderboard.
The number of rounds is fixed before the first one. Ctrl-C shows what is known so far.

The problem is that of --problem, or else the directory of a submission, or this one,
if it has a task.yml.

Exit code 0 if the submission passed, 1 if it did not. Of two files, 0 if they were
compared, whichever is faster.`,
		Example: `  kbnode evaluate --problem prefix_python mine.py
  kbnode evaluate ~/problems/sort/mine.py --mode leaderboard
  kbnode evaluate --problem prefix_python old.py new.py --plot times.svg`,
		Args: oneOrTwo,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := l.check(s, cmd, args); err != nil {
				return err
			}
			if len(args) == 2 && !cmd.Flags().Changed("mode") {
				l.mode = compare.Modes[0]
			}
			if err := c.check(s, cmd, args, l.mode, compare.Modes); err != nil {
				return err
			}
			if len(args) == 2 {
				return c.run(cmd.Context(), s, &l, args)
			}
			return l.run(cmd.Context(), s, o, args)
		},
	}
	l.add(cmd)
	c.add(cmd.Flags())
	cmd.Flags().StringVar(&o.Dir, "workdir", "", "an empty directory, where the program runs and result.json is written (default: a temporary one)")
	return cmd
}

type localFlags struct {
	problem, mode string
	asJSON        bool
}

func (l *localFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	addProblem(fl, &l.problem, "")
	fl.StringVar(&l.mode, "mode", "test", "test, benchmark, leaderboard, private or profile")
	term.JSONFlag(fl, &l.asJSON, "print result.json, or a comparison as JSON", compareDoc)
}

// check completes the flags, or says what is wrong with them.
func (l *localFlags) check(s term.Streams, cmd *cobra.Command, args []string) error {
	given := cmd.Flags().Changed
	if l.problem == "" && given("problem") {
		return term.Usagef("--problem names no problem; give %s", task.Choice)
	}
	if err := checkPlaces(s, args); err != nil {
		return err
	}
	l.problem = cmp.Or(l.problem, nearestProblem(args))
	if l.problem == "" {
		if len(args) == 0 {
			return term.Usagef("no file and no problem; write such as kbnode evaluate --problem prefix_python mine.py")
		}
		i, shown := slices.Index(s.Typed, args[0]), text.Line(args[0], 60)
		if i < 0 {
			return term.Usagef("%q needs --problem", shown)
		}
		return s.Advise(fmt.Sprintf("%q needs its problem, %s", shown, task.Choice), s.With(i, "--problem", "PROBLEM", args[0]))
	}
	if given("workdir") && len(args) < 2 {
		return checkWorkdir(cmd.Flag("workdir").Value.String())
	}
	return nil
}

// checkWorkdir refuses a directory with more than an earlier evaluation leaves: programs may change all that is in it, and the
// problem's files replace those of their names, and are removed in the end.
func checkWorkdir(dir string) error {
	info, err := os.Stat(dir)
	files, readErr := os.ReadDir(dir)
	shown := text.ShellWord(text.Line(dir, 200))
	inHome, isHome := strings.CutPrefix(dir, "~/")
	switch absent := errors.Is(err, fs.ErrNotExist); {
	case absent && isHome:
		return term.Usagef("--workdir: the shell replaces ~ only without quotes and =; type mkdir -p %[1]s, and write --workdir %[1]s", "~/"+text.ShellWord(text.Line(inHome, 200)))
	case absent && mayMake(dir):
		return term.Usagef("--workdir: there is no directory %[1]s; type mkdir -p %[1]s first, or leave --workdir out", shown)
	case err == nil && !info.IsDir():
		return term.Usagef("--workdir: %s is a file; type mkdir out, and write --workdir out", shown)
	case readErr != nil, unix.Access(dir, unix.W_OK|unix.X_OK) != nil, filepath.Clean(dir) == "/":
		return term.Usagef("--workdir: %s is no place for result.json; name a directory of your own, or leave --workdir out", shown)
	}
	var own []string
	if hasResult(dir) {
		own = []string{result.File, runner.ProfileDir, witness.File}
	}
	for _, f := range files {
		if !slices.Contains(own, f.Name()) {
			return term.Usagef("--workdir: an evaluation could change or remove what is in %s, such as %s; name an empty directory: type mkdir out, and write --workdir out",
				shown, text.ShellWord(text.Line(f.Name(), 60)))
		}
	}
	return nil
}

// mayMake reports whether mkdir -p may make a directory that does not exist.
func mayMake(dir string) bool {
	for {
		if _, err := os.Lstat(dir); err == nil {
			return isDir(dir) && unix.Access(dir, unix.W_OK|unix.X_OK) == nil
		}
		dir = filepath.Dir(dir)
	}
}

// hasResult reports whether an evaluation wrote its result into a directory.
func hasResult(dir string) bool {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return false
	}
	defer root.Close() //nolint:errcheck // opened for reading
	raw, err := result.ReadFile(root, result.File)
	if err != nil {
		return false
	}
	r, err := result.Read(raw)
	return err == nil && (r.System != nil || r.Error != "")
}

// nearestProblem returns the directory with the problem of a submission, or "".
func nearestProblem(args []string) string {
	var dirs []string
	for _, file := range args {
		dirs = append(dirs, filepath.Dir(file))
	}
	for _, dir := range append(dirs, ".") {
		if isProblem(dir) {
			return dir
		}
	}
	return ""
}

func (l *localFlags) run(ctx context.Context, s term.Streams, o runner.Options, args []string) error {
	t, submission, err := readProblem(s, l.problem, args)
	if err != nil {
		return err
	}
	doc, err := t.Config(submission, "", l.mode)
	if err != nil {
		return term.Usage(err)
	}
	if err := submit.CheckSize(payload.Encode([]byte(doc))); err != nil {
		s.Warn("no node can evaluate this: %v", err)
	}
	o.Config, o.Stdin = "-", strings.NewReader(doc)
	if len(args) == 0 {
		s.Progress("submission: the problem's own %s; name a file to evaluate yours", t.Submission)
	}
	limits := map[string]time.Duration{"test": t.TestTimeout, "benchmark": t.BenchmarkTimeout, "leaderboard": t.RankedTimeout}
	o.Begin = func(what, name string) {
		if limit := limits[name]; what == "run" && limit > 0 {
			what += fmt.Sprintf(", %.0f s at most", limit.Seconds())
		}
		s.Progress("%s: %s", name, what)
	}
	raw, r, err := evaluate(ctx, o)
	if err != nil {
		return err
	}
	said, passed := r.Verdict()
	missing := submit.Missing(r)
	switch {
	case l.asJSON:
		term.Verbatim(s.Out, text.JSON(string(raw)))
	case !r.Success && strings.HasPrefix(r.Error, result.Cancelled):
		term.Printf(s.Out, "No verdict: interrupted before its end\n")
		var report strings.Builder
		r.Completed(&report)
		term.Printf(s.Out, "%s", report.String())
	case missing != "":
		term.Printf(s.Out, "Not evaluated: %s\n", missing)
	default:
		var report strings.Builder
		r.Report(&report, true)
		term.Printf(s.Out, "%s", paintReport(s.Out, report.String(), said, passed))
	}
	if passed && !l.asJSON && r.Vague() && len(args) > 0 {
		s.Progress("to compare two files in spite of that: %s", s.Line([]string{"evaluate", "--problem", l.problem, args[0], "other" + text.Line(filepath.Ext(args[0]), 20)}))
	}
	if !passed && missing != "" {
		s.Progress("install what is missing, or evaluate on a node: %s", s.Line(append([]string{"submit", "--gpu", submit.GPUFor(t), "--problem", l.problem, "--mode", l.mode}, args...)))
	}
	return term.ExitUnless(passed, nil)
}

// evaluate runs an evaluation in its directory or, without one, in a temporary directory, and returns
// result.json as it is and as it was read.
func evaluate(ctx context.Context, o runner.Options) (raw []byte, r *result.Result, err error) {
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "kbnode-runner-"); err != nil {
			return nil, nil, fmt.Errorf("make a directory for the evaluation: %w; set TMPDIR to a directory that you may write to", err)
		}
		defer func() { err = errors.Join(err, tree.RemoveAll(o.Dir)) }()
	}
	var notes bytes.Buffer
	o.Stderr = &notes
	if runner.Main(ctx, o) == exitNoResult {
		return nil, nil, errors.New(strings.TrimSpace(notes.String()))
	}
	root, err := os.OpenRoot(o.Dir)
	if err != nil {
		return nil, nil, fmt.Errorf("read result: %w", err)
	}
	defer root.Close() //nolint:errcheck // opened for reading
	if raw, err = result.ReadFile(root, result.File); err != nil {
		return nil, nil, fmt.Errorf("read result: %w", err)
	}
	r, err = result.Read(raw)
	return raw, r, err
}
