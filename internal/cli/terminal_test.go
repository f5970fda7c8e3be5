package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pretty "github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// asKbnode is the variable that lets the test binary run as kbnode: an evaluation takes over its process.
const asKbnode = "KBNODE_TEST_MAIN"

// TestMain gives all tests the same terminal, and no proxy.
func TestMain(m *testing.M) {
	for _, name := range []string{"NO_COLOR", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"} {
		_ = os.Unsetenv(name)
	}
	_ = os.Setenv("TERM", "xterm")
	if root := os.Getenv(dialogRoot); root != "" {
		os.Exit(dialogOf(root))
	}
	if os.Getenv(asKbnode) != "" {
		os.Exit(Main(os.Args[1:], term.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr}))
	}
	os.Exit(m.Run())
}

// openPTY returns both sides of a pseudo-terminal.
func openPTY(t *testing.T, cols uint16) (master, tty *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	err = errors.Join(err, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0), unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 50, Col: cols}))
	if err == nil {
		tty, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	must.Do(t, err)
	return master, tty
}

// onTerminal runs a command line on a terminal and returns its output.
func onTerminal(t *testing.T, cols uint16, args ...string) string {
	t.Helper()
	p := newPerson(t, cols)
	run(t.Context(), args, term.Streams{In: strings.NewReader(""), Out: p.tty, Err: p.tty})
	return p.saw()
}

// everything returns what can be asked without a node: answers, help, refusals.
func everything(t *testing.T) [][]string {
	t.Helper()
	t.Chdir(t.TempDir()) // kbnode runner leaves a result.json
	b200, h100 := machinetest.B200x8().Dir(t), machinetest.HGXH100().Dir(t)
	all := [][]string{
		{"version"}, {"nothing"}, {"plan", "--root", b200}, {"plan", "--root", b200, "--queue", "nvidia-b200-{index}"}, {"plan", "--root", h100},
		{"inventory", "--root", b200}, {"inventory", "--root", h100}, {"doctor", "--list"}, {"doctor", "--explain", "docker-engine"}, {"plan", "--root", b200, "--queue", "a b"},
		{"plan", "--root", b200, "--gpus", "0,99"}, {"runner"}, {"submit", "--eval", "/nowhere", "--queue", "b200"}, {"payload", "decode"}, {"pipeline", "evaluate"},
	}
	for _, cmd := range newRoot(term.Streams{In: strings.NewReader(""), Out: io.Discard, Err: io.Discard}).Commands() {
		all = append(all, []string{cmd.Name(), "--help"})
		for _, sub := range cmd.Commands() {
			all = append(all, []string{cmd.Name(), sub.Name(), "--help"})
		}
	}
	return all
}

// tooWide returns a line's width if that exceeds the terminal's although the line could be broken: it is no command to
// paste, and does not end in a word that is wider than half of the terminal, such as a path or a URL.
func tooWide(line string, cols int) int {
	n, words := pretty.StringWidthWithoutEscSequences(line), strings.Fields(line)
	if n <= cols || words[0] == "type" || len(words[len(words)-1]) > cols/2 {
		return 0
	}
	return n
}

// TestWidth checks that everything fits a terminal: help texts, tables, refusals.
func TestWidth(t *testing.T) {
	machines, err := filepath.Abs("../../examples/machines")
	must.Do(t, err)
	all := everything(t)
	for _, line := range []string{"plan mi300x8", "plan h100-mig", "status b200-faults", "doctor b200-faults"} {
		command, name, _ := strings.Cut(line, " ")
		all = append(all, []string{command, "--root", filepath.Join(machines, name+".txtar")})
	}
	for _, args := range all {
		if args[0] == "runner" && len(args) == 1 {
			continue // a log
		}
		for _, cols := range []uint16{60, 80, 160} {
			for line := range strings.SplitSeq(onTerminal(t, cols, args...), "\n") {
				if n := tooWide(line, int(cols)); n > 0 {
					t.Errorf("%v: %d of %d columns: %q", args, n, cols, line)
				}
			}
		}
	}
}

// TestColour checks that there is color only on a terminal, and only where it is wanted.
func TestColour(t *testing.T) {
	args := []string{"plan", "--root", machinetest.B200x8().Dir(t)}
	for _, tt := range []struct {
		set  []string
		want bool
	}{{[]string{"NO_COLOR", ""}, true}, {[]string{"NO_COLOR", "1"}, false}, {[]string{"NO_COLOR", "0"}, false}, {[]string{"TERM", "dumb"}, false}} {
		t.Run(strings.Join(tt.set, "="), func(t *testing.T) {
			t.Setenv(tt.set[0], tt.set[1])
			must.Equal(t, tt.want, strings.Contains(onTerminal(t, 80, args...), "\x1b["))
		})
	}
	if got := kbnode(t, args...); strings.Contains(got.out+got.err, "\x1b") {
		t.Error("colour in a pipe")
	}
}

// TestDumbTerminal checks that nothing on the screen is overwritten.
func TestDumbTerminal(t *testing.T) {
	t.Setenv("TERM", "dumb")
	person := newPerson(t, 80)
	p := changeProgress{Progress: term.NewProgress(term.Streams{Err: person.tty})}
	for _, c := range shown {
		p.show(c)
	}
	p.end()
	must.Equal(t, "  adding users\n  writing files\n  reloading systemd\n", person.saw())
}

func TestWrap(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, in, want string
		width          int
	}{
		{"short", "a short line\n", "a short line\n", 12},
		{"sentence", "one two three four five\n", "one two\n  three\n  four\n  five\n", 9},
		{"below its label", "FAIL  docker: there is no Docker on this machine\n", "FAIL  docker: there is\n      no Docker on this\n      machine\n", 24},
		{"indented", "      type  a b c d e f g h i j\n      do    x\n", "      type  a b c d e f\n            g h i j\n      do    x\n", 24},
		{"a word that is wider", "see https://example.com/a/long/path there\n", "see\n  https://example.com/a/long/path\n  there\n", 20},
		{"colour is no width", "\x1b[33mwarning:\x1b[0m a b c d\n", "\x1b[33mwarning:\x1b[0m a b c d\n", 16},
		{"blanks within", "a  b c\nlong enough a  b c", "a  b c\nlong enough a  b\n  c", 17},
		{"deeper than it is wide", "                  one two three\n", "                  one\n          two three\n", 20},
		{"no end", "one two", "one\n  two", 5},
	} {
		must.Equal(t, tt.want, term.Wrap(tt.in, tt.width))
	}
}

// TestList checks that a narrow table omits its spare columns and wraps its sentences.
func TestList(t *testing.T) {
	t.Parallel()
	var b bytes.Buffer
	l := term.NewList(&b, "Slot", "GPU", "Name", "Problem")
	l.Spare, l.Most = []string{"GPU", "Slot"}, map[string]int{"Name": 5}
	l.Row("gpu0", "NVIDIA B200", "n-0123", "-")
	l.Row("gpu1", "NVIDIA B200", "n", "its GPU fell off the bus, and nobody knows why")
	l.Print()
	wide := "SLOT  GPU          NAME    PROBLEM\ngpu0  NVIDIA B200  n-0123  -\ngpu1  NVIDIA B200  n       its GPU fell off the bus, and nobody knows why\n"
	must.Equal(t, wide, b.String())
	narrow := "SLOT  NAME   PROBLEM\ngpu0  n-…23  -\ngpu1  n      its GPU fell off the bus, and\n             nobody knows why\n"
	must.Equal(t, narrow, l.Draw(44)+"\n")
	const uuid = "GPU-6c1d4f0a-93b2-4e57-8a1c-0d5e7f2a3b03"
	for _, word := range []string{uuid, "https://buildkite.com/gpu-mode/kernelbot/builds/1234"} { // must stay whole, to be copied
		l = term.NewList(&b, "Slot", "Model", "Problem")
		l.Spare = []string{"Model"}
		l.Row("gpu3", "NVIDIA B200", "see "+word+" there")
		long := "SLOT  PROBLEM\ngpu3  see\n      " + word + "\n      there\n"
		for _, width := range []int{20, len(word), len(word) + 6} {
			must.Equal(t, long, l.Draw(width)+"\n")
		}
	}
}

// TestHelpFitsAScreen checks the first thing that people type.
func TestHelpFitsAScreen(t *testing.T) {
	t.Parallel()
	help := onTerminal(t, 80, "--help")
	if n := strings.Count(help, "\n"); n > 40 {
		t.Errorf("%d lines", n)
	}
	at := 0
	for _, title := range []string{"Set up", "Operate", "Write kernels", "Run a competition", plumbing} {
		i := strings.Index(help[at:], "\n"+title+":\n")
		if i < 0 {
			t.Fatalf("%q is not where it belongs in:\n%s", title, help)
		}
		at += i
	}
	for _, cmd := range Commands().Commands() {
		if n := strings.Count(help, "\n  "+cmd.Name()+" "); (n == 1) == cmd.Hidden {
			t.Errorf("%s is there %d times:\n%s", cmd.Name(), n, help)
		}
	}
}

// TestHelpIsFilled checks that each help text fits the terminal, and that its lines break where the terminal's width says,
// not where those of the source do. Whole words remain.
func TestHelpIsFilled(t *testing.T) {
	t.Parallel()
	words := func(s string) string { return " " + strings.Join(strings.Fields(s), " ") + " " }
	var check func(cmd *cobra.Command)
	check = func(cmd *cobra.Command) {
		for _, cols := range []int{60, 80} {
			help := onTerminal(t, uint16(cols), append(strings.Fields(cmd.CommandPath())[1:], "--help")...)
			lines, column := strings.Split(help, "\n"), 0
			for i, line := range lines[:len(lines)-1] {
				if n := tooWide(line, cols); n > 0 {
					t.Errorf("%s: %d of %d columns: %q", cmd.CommandPath(), n, cols, line)
				}
				next := lines[i+1]
				if indent(line) != column || column == 0 {
					column = max(0, lastColumn(line))
				}
				first, _, _ := strings.Cut(strings.TrimSpace(next), " ")
				switch {
				case line == "" || next == "":
				case indent(line) == 0 && indent(next) > 0 && !strings.HasSuffix(line, ":"):
					t.Errorf("%s, %d columns: prose is indented: %q", cmd.CommandPath(), cols, next)
				case indent(next) == column && len(line)+1+len(first) <= cols:
					t.Errorf("%s: %q fits in %d columns after: %q", cmd.CommandPath(), first, cols, line)
				}
			}
			said := words(help)
			if cmd.Long != "" && !strings.Contains(said, words(cmd.Long)) {
				t.Errorf("%s, %d columns: the text is not whole:\n%s", cmd.CommandPath(), cols, help)
			}
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				if _, usage := pflag.UnquoteUsage(f); !f.Hidden && !strings.Contains(said, words(usage)) {
					t.Errorf("%s, %d columns: --%s is not whole:\n%s", cmd.CommandPath(), cols, f.Name, help)
				}
			})
		}
		for _, sub := range cmd.Commands() {
			check(sub)
		}
	}
	check(Commands())
}

// TestExplanationsFitAScreen checks that the links of an explanation can be opened from a terminal.
func TestExplanationsFitAScreen(t *testing.T) {
	t.Parallel()
	said := onTerminal(t, 80, "doctor", "--explain", "docker")
	if link := "(https://github.com/gpu-mode/kbnode/blob/main/docs/security.md#the-internet-only)"; !strings.Contains(squeeze(strings.ReplaceAll(said, "\n", " ")), link) {
		t.Errorf("%q is not in:\n%s", link, said)
	}
}

// TestVerbatim checks that text that people save is not wrapped.
func TestVerbatim(t *testing.T) {
	root := t.TempDir()
	must.Write(t, root, "etc/kbnode/config.yaml", "queue: b200\nimage:\n  name: registry.example.com/"+strings.Repeat("x", 60)+":latest\n  auto_update: 10 3 * * 1,2,3,4,5,6,7\n")
	plainly := kbnode(t, "config", "show", "--root", root)
	if got := onTerminal(t, 40, "config", "show", "--root", root); plainly.code != 0 || got != plainly.out {
		t.Errorf("on a terminal:\n%s\nelsewhere:\n%s%s", got, plainly.out, plainly.err)
	}
}

// TestJSONIsVisible checks that a terminal acts on nothing in the JSON of a command, which has what jobs wrote.
func TestJSONIsVisible(t *testing.T) {
	t.Parallel()
	for indent, want := range map[string]string{"": `{"gpu":"a\u009b31m\u202e<é"}`, "  ": "{\n  \"gpu\": \"a\\u009b31m\\u202e<é\"\n}"} {
		var out bytes.Buffer
		must.Do(t, term.EncodeJSON(&out, indent, map[string]string{"gpu": "a\u009b31m\u202e<é"}))
		must.Equal(t, want+"\n", out.String())
	}
}
