package operator

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// NewPayload returns kbnode payload.
func NewPayload(s term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "payload",
		Short:  "Encode and decode the payload of a job, for debugging",
		Hidden: true,
		Long: `Encode and decode the payload of a job, for debugging.

A payload is a JSON object with the task and the submission, compressed with zlib
and encoded in base64.`,
	}
	cmd.AddCommand(newPayloadEncode(s), newPayloadDecode(s))
	return cmd
}

func newPayloadEncode(s term.Streams) *cobra.Command {
	var env bool
	var problem, mode string
	cmd := &cobra.Command{
		Use:   "encode [FILE]",
		Short: "Print the payload for a JSON file, standard input, or a submission",
		Long: `Print the payload for a JSON file or standard input or, with --problem, for the
submission FILE (default: the problem's own).`,
		Example: `  kbnode payload encode --problem prefix_python mine.py | kbnode payload decode --indent
  kbnode payload encode --env task.json >job.env    for docker run --env-file
  kbnode payload encode task.json | kbnode runner --payload - --workdir /tmp/job`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.Flags().Changed("mode") && problem == "" {
				return term.Usagef("--mode needs --problem; a JSON file has its own mode")
			}
			if problem == "" && len(args) > 0 && task.LangOf(args[0]) != "" {
				return s.Advise("a submission needs its problem", s.With(slices.Index(s.Typed, args[0]), "--problem", "PROBLEM", args[0]))
			}
			doc, err := document(s, problem, mode, args)
			if err != nil {
				return err
			}
			text := payload.Encode([]byte(doc))
			if !env {
				term.Printf(s.Out, "%s\n", text)
				return nil
			}
			for _, kv := range payload.Environ(text) {
				term.Printf(s.Out, "%s\n", kv)
			}
			return nil
		},
	}
	addProblem(cmd.Flags(), &problem, "")
	cmd.Flags().StringVar(&mode, "mode", "test", "with --problem: "+strings.Join(task.Modes, ", "))
	cmd.Flags().BoolVar(&env, "env", false, "print environment variables, one per line; in numbered pieces if one would be too long")
	return cmd
}

// document returns the JSON text of a payload: of a submission to a problem or, without one, from the
// command's input.
func document(s term.Streams, problem, mode string, args []string) (string, error) {
	if problem != "" {
		t, submission, err := readProblem(s, problem, args)
		if err != nil {
			return "", err
		}
		doc, err := t.Config(submission, t.Arch, mode)
		return doc, term.Usage(err)
	}
	if err := checkPlaces(s, args); err != nil {
		return "", err
	}
	in, err := input(s, args)
	if err != nil {
		return "", err
	}
	if in == nil {
		return "", term.Usagef("nothing to encode; name a JSON file, pipe one in, or give --problem")
	}
	defer in.Close() //nolint:errcheck // opened for reading
	doc, err := payload.ReadJSON(in)
	if err != nil {
		return "", err
	}
	_, err = payload.ParseObject(doc)
	return doc, err
}

func newPayloadDecode(s term.Streams) *cobra.Command {
	var indent bool
	cmd := &cobra.Command{
		Use:   "decode [FILE]",
		Short: "Print the JSON text of a payload",
		Long: `Print the JSON text of a payload. It reads a file, standard input or, if nothing is
piped in, the environment variables that kbnode runner reads.`,
		Example: `  kbnode payload decode --indent    in a job
  kbnode payload decode payload >task.json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 && task.LangOf(args[0]) != "" {
				return s.Advise(fmt.Sprintf("%q is a submission, and no payload", text.Line(args[0], 60)), []string{"payload", "encode", "--problem", cmp.Or(nearestProblem(args), "PROBLEM"), args[0]})
			}
			packed, err := encoded(s, args)
			if err != nil {
				return err
			}
			doc, err := payload.Inflate(packed)
			if err != nil {
				return err
			}
			if _, err := payload.ParseObject(doc); err != nil {
				return err
			}
			var indented bytes.Buffer
			if indent && depth(doc) <= maxIndent && json.Indent(&indented, []byte(doc), "", "  ") == nil { // it refuses NaN, which Python writes
				doc = indented.String()
			}
			if _, ok := term.Terminal(s.Out); ok {
				doc = text.Block(doc)
			}
			if _, err := io.WriteString(s.Out, strings.TrimRight(doc, " \t\r\n")+"\n"); err != nil {
				return fmt.Errorf("write output: %w", err)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&indent, "indent", false, "indent it, for reading")
	return cmd
}

// input opens the named file, or standard input. It returns nil if no file is named and nothing
// is piped in.
func input(s term.Streams, args []string) (io.ReadCloser, error) {
	if len(args) > 0 && args[0] != "-" {
		f, err := os.Open(args[0])
		if err != nil {
			return nil, fmt.Errorf("read payload: %w", text.FileError(args[0], err, "fix the path, or write - for standard input"))
		}
		if info, err := f.Stat(); err == nil && info.IsDir() {
			return nil, errors.Join(term.Usagef("read payload: %s is a directory; name a file", args[0]), f.Close())
		}
		return f, nil
	}
	if f, ok := s.In.(*os.File); ok && len(args) == 0 {
		// A terminal, /dev/null, or closed.
		if info, err := f.Stat(); err != nil || info.Mode()&os.ModeCharDevice != 0 {
			return nil, nil
		}
	}
	return io.NopCloser(s.Piped), nil
}

// maxIndent is the depth up to which decode indents: the text of a deeper one grows a lot.
const maxIndent = 64

// depth returns about how deep lists and groups are in each other. It also counts brackets in strings.
func depth(doc string) (most int) {
	n := 0
	for _, c := range doc {
		switch c {
		case '[', '{':
			n++
			most = max(most, n)
		case ']', '}':
			n--
		}
	}
	return most
}

// encoded returns an encoded payload from the command's input, or else from the environment.
func encoded(s term.Streams, args []string) (string, error) {
	in, err := input(s, args)
	if err != nil {
		return "", err
	}
	text := ""
	if in != nil {
		defer in.Close() //nolint:errcheck // opened for reading
		text, err = payload.Read(in)
		if err != nil || len(args) > 0 || strings.TrimSpace(text) != "" {
			return text, err
		}
	}
	text, err = payload.FromEnv(os.Environ())
	if err == nil && text == "" {
		err = term.Usagef("nothing to decode; name a file, pipe a payload in, or set %s", payload.Var)
	}
	return text, err
}

// readProblem reads a problem, by its directory or its name, and a submission to it: the file in
// args, or the one in the problem's directory. Its errors are of usage.
func readProblem(s term.Streams, name string, args []string) (t *task.Task, submission string, err error) {
	if t, err = task.Find(name); err != nil {
		return nil, "", term.Usage(err)
	}
	if len(args) > 0 {
		if err := checkPlaces(s, args); err != nil {
			return nil, "", err
		}
		if err := checkLang(s, t, name, args[0]); err != nil {
			return nil, "", err
		}
		if submission, err = task.ReadSubmissionFile(args[0]); err == nil && strings.TrimSpace(submission) == "" {
			return nil, "", begin(s, t, name, text.ShellWord(text.Line(args[0], 60))+" is empty", args[0], "write the submission to it")
		}
	} else if _, absent := fs.Stat(t.FS(), t.Submission); errors.Is(absent, fs.ErrNotExist) {
		return nil, "", term.Usagef("%s has no %s of its own; name the file of your submission", t.Dir, t.Submission)
	} else {
		submission, err = t.ReadSubmission(t.Submission)
	}
	if err != nil {
		return nil, "", term.Usage(fmt.Errorf("read submission: %w", err))
	}
	return t, submission, nil
}

// checkLang refuses a submission whose name says that it is in another language than the problem's.
func checkLang(s term.Streams, t *task.Task, problem, file string) error {
	if filepath.Ext(file) == ".ipynb" {
		return term.Usagef("%s is a notebook; type jupyter nbconvert --to script %[1]s, and write the .py", text.ShellWord(text.Line(file, 60)))
	}
	has, wants := task.LangOf(file), t.Submits()
	if has == "" || has == wants {
		return nil
	}
	shown := func(name string) string { return text.ShellWord(text.Line(name, 60)) }
	says := fmt.Sprintf("%s is in %s, and %s takes %s", shown(file), languages[has], t.Name(), languages[wants])
	other := strings.TrimSuffix(file, has) + wants
	if _, err := os.Lstat(other); err == nil {
		return term.Usagef("%s; write %s instead", says, shown(other))
	}
	return begin(s, t, problem, says, other, "name a file that ends in ."+wants)
}

// languages are the names of languages in templates.
var languages = map[string]string{task.Python: "Python", task.CUDA: "CUDA"}

// begin says how to begin a submission in a file, or what else to do if the problem has no template.
func begin(s term.Streams, t *task.Task, problem, says, file, otherwise string) error {
	wants := t.Submits()
	for _, lang := range append([]string{languages[wants]}, slices.Sorted(maps.Keys(t.Templates))...) {
		if t.Templates[lang] != "" {
			return term.Usagef("%s; to begin one, write %s >%s", says, s.Line([]string{"submit", "--problem", problem, "--template", lang}), text.ShellWord(text.Line(file, 60)))
		}
	}
	return term.Usagef("%s; %s", says, otherwise)
}

// addProblem adds --problem, which submit called --eval once.
func addProblem(fl *pflag.FlagSet, name *string, usual string) {
	fl.StringVar(name, "problem", usual, "`PROBLEM`: "+task.Choice)
	fl.SetNormalizeFunc(func(_ *pflag.FlagSet, typed string) pflag.NormalizedName {
		if typed == "eval" {
			typed = "problem"
		}
		return pflag.NormalizedName(typed)
	})
}

// checkPlaces refuses a problem in the place of a submission.
func checkPlaces(s term.Streams, args []string) error {
	for _, arg := range args {
		i := slices.Index(s.Typed, arg)
		switch says := fmt.Sprintf("%q is a problem", text.Line(arg, 60)); {
		case !namesProblem(arg) || i < 0:
		case s.Find("--problem") >= 0 || s.Find("--eval") >= 0:
			return s.Advise(says+", and no submission", s.With(i))
		default:
			return s.Advise(says, s.With(i, "--problem", arg))
		}
	}
	return nil
}

// namesProblem reports whether a word is the directory of a problem, its task.yml, or an example that no file or directory hides.
func namesProblem(word string) bool {
	_, absent := os.Lstat(word)
	return isProblem(word) || filepath.Base(word) == task.FileName && absent == nil || absent != nil && slices.Contains(task.Examples(), word)
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

func isProblem(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, task.FileName))
	return err == nil && info.Mode().IsRegular()
}

// ProblemValues completes the name of an example once it has begun, and directories otherwise.
func ProblemValues(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	for _, name := range task.Examples() {
		if strings.HasPrefix(name, typed) {
			names = append(names, name)
		}
	}
	if len(names) == 0 || typed == "" {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
