package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/text"
)

// rootCommands are the commands that only root can complete. Advice writes sudo before them.
var rootCommands = []string{"install", "reconcile", "uninstall", "status", "drain", "resume", "undrain", "upgrade", "daemon", "selftest", "doctor", "image", "logs"}

// rootVariables are the variables that a command reads, by command. sudo drops them unless told.
var rootVariables = map[string][]string{
	"install": {"BUILDKITE_AGENT_TOKEN", "GPU_TYPE", "NODE_NAME", "GPU_COUNT", "CPUS_PER_GPU", "RAM_PER_GPU"},
	"doctor":  {"BUILDKITE_API_TOKEN", "BUILDKITE_API_URL"},
}

// maxLine bounds a command line that is repeated, in bytes of an argument.
const maxLine = 4096

// line returns a command line with its arguments, quoted for a shell.
func line(args []string) string {
	words := []string{"kbnode"}
	i := slices.IndexFunc(args, func(a string) bool { return !strings.HasPrefix(a, "-") })
	if i >= 0 && slices.Contains(rootCommands, args[i]) {
		words = []string{"sudo", "kbnode"}
		keep := slices.DeleteFunc(slices.Clone(rootVariables[args[i]]), func(name string) bool { return os.Getenv(name) == "" })
		if len(keep) > 0 {
			words = slices.Insert(words, 1, "--preserve-env="+strings.Join(keep, ","))
		}
	}
	for _, a := range args {
		if !text.Plain(a) || len(a) > maxLine {
			a = text.Line(a, maxLine)
		}
		if a == "" || strings.ContainsAny(a, " $`\"\\*?[]{}()<>|&;#~!'") {
			a = "'" + strings.ReplaceAll(a, "'", `'\''`) + "'"
		}
		words = append(words, a)
	}
	return strings.Join(words, " ")
}

// again returns what was typed, to type it again as root.
func (s Streams) again() string { return line(s.typed) }

// rootError is the refusal of a command that needs root.
type rootError struct{ says string }

func (e *rootError) Error() string { return e.says }

// advice is the refusal of a command line, with the lines that may be meant.
type advice struct {
	error
	lines [][]string // arguments
}

// hints holds the typed words, to repeat them corrected.
type hints struct {
	args []string
	deep int // how many corrections led to these words
}

// maxDeep bounds the corrections of one line.
const maxDeep = 8

// write advises to type one of these lines instead, with everything else in them corrected, too.
func (h hints) write(says string, lines ...[]string) error {
	var shown []string
	for i := range lines {
		lines[i] = h.settle(lines[i])
		shown = append(shown, line(lines[i]))
	}
	return usage(&advice{fmt.Errorf("%s; write %s", says, strings.Join(shown, ", or ")), lines})
}

// settle corrects a line until kbnode takes its words, or does not know what they mean.
func (h hints) settle(args []string) []string {
	if h.deep < maxDeep {
		err := hints{args, h.deep + 1}.refuse()
		if a, ok := errors.AsType[*advice](err); ok && len(a.lines) == 1 {
			return a.lines[0]
		}
	}
	return args
}

// refuse returns what is wrong with the words themselves, and runs nothing.
func (h hints) refuse() error {
	root := newRoot(Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}, h)
	if err := h.command(root); err != nil {
		return err
	}
	cmd, words, err := root.Find(h.args)
	if err != nil {
		return err
	}
	cmd.InitDefaultHelpFlag()
	if err := cmd.ParseFlags(words); err != nil {
		return cmd.FlagErrorFunc()(cmd, err)
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

// with returns the typed words with word i replaced, or removed if words is empty.
func (h hints) with(i int, words ...string) []string {
	return slices.Replace(slices.Clone(h.args), i, i+1, words...)
}

// find returns the index of a flag in the typed words that has this value, or of its first use,
// or -1.
func (h hints) find(flag, value string) int {
	first := -1
	for i, a := range h.args {
		name, given, is := strings.Cut(a, "=")
		if name != flag {
			continue
		}
		if first < 0 {
			first = i
		}
		if is && given == value || !is && i+1 < len(h.args) && h.args[i+1] == value {
			return i
		}
	}
	return first
}
