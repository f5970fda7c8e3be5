package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	pretty "github.com/jedib0t/go-pretty/v6/text"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
)

// person sits at a pseudo-terminal.
type person struct {
	t           *testing.T
	master, tty *os.File
	done        chan struct{} // closed at the end of the screen

	mu     sync.Mutex
	screen bytes.Buffer
	read   int // how much of the screen was read
}

func newPerson(t *testing.T, columns uint16) *person {
	t.Helper()
	p := &person{t: t, done: make(chan struct{})}
	p.master, p.tty = openPTY(t, columns)
	go func() {
		defer close(p.done)
		b := make([]byte, 4096)
		for {
			n, err := p.master.Read(b)
			p.mu.Lock()
			p.screen.Write(b[:n])
			p.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	return p
}

// waitFor waits for a text on the screen, after the last one.
func (p *person) waitFor(what string) {
	p.t.Helper()
	for deadline := time.Now().Add(must.Patience); ; time.Sleep(5 * time.Millisecond) {
		p.mu.Lock()
		rest := p.screen.String()[p.read:]
		i := strings.Index(rest, what)
		if i >= 0 {
			p.read += i + len(what)
		}
		p.mu.Unlock()
		if i >= 0 {
			return
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%q is not on the screen:\n%s", what, rest)
		}
	}
}

// types answers questions: what the person waits for, and what he types then.
func (p *person) types(dialog ...string) {
	p.t.Helper()
	for i := 0; i+1 < len(dialog); i += 2 {
		p.waitFor(dialog[i])
		if _, err := p.master.WriteString(dialog[i+1]); err != nil {
			p.t.Error(err)
		}
	}
}

func (p *person) streams(args ...string) term.Streams {
	return term.Streams{In: p.tty, Out: &term.Answer{To: p.tty}, Err: p.tty, Typed: args, Root: true, Commands: Commands()}
}

// saw returns the screen when kbnode is done, with \n as line breaks.
func (p *person) saw() string {
	_ = p.tty.Close()
	<-p.done
	return strings.ReplaceAll(p.screen.String(), "\r\n", "\n")
}

// echoes reports whether the terminal shows what is typed.
func (p *person) echoes() bool {
	p.t.Helper()
	mode, err := unix.IoctlGetTermios(int(p.tty.Fd()), unix.TCGETS)
	if err != nil {
		p.t.Fatal(err)
	}
	return mode.Lflag&(unix.ECHO|unix.ICANON|unix.ISIG) == unix.ECHO|unix.ICANON|unix.ISIG
}

func noEnv(string) string { return "" }

// TestInstallDialog is an installation by a person who mistypes every answer once, on a machine of
// files. Only what it changes is left out.
func TestInstallDialog(t *testing.T) {
	machine := newNode(t, 4)
	bk := machine.serve(t)
	defer func() { _ = bk.Close() }()

	p := newPerson(t, 80)
	s := p.streams("install", "--node", "box")
	f := &installFlags{}
	f.cfg.Node, f.cfg.Agent.Endpoint = "box", bk.Endpoint()
	n := &node.Node{Root: machine.root, Log: term.Streams{Err: t.Output()}.Logger()}
	done := make(chan error)
	go func() {
		done <- func() error {
			if err := f.load(n, noEnv); err != nil {
				return err
			}
			if err := f.ask(t.Context(), s, n, noEnv); err != nil {
				return err
			}
			changes, err := n.Preview(t.Context())
			if err != nil {
				return err
			}
			printTaken(s, n.Plan, changes)
			if err := confirmInstall(t.Context(), s, f, changes); err != nil {
				return err
			}
			report := &doctor.Report{Fit: true, Checks: []doctor.Result{
				{ID: "image-present", Group: "image", Status: doctor.Warn, Findings: []doctor.Finding{{Status: doctor.Warn, Detail: "not here"}}},
				{ID: "gpu-present", Group: "gpu", Status: doctor.OK},
			}}
			nextSteps(s, n.Plan, reconcile.Result{Applied: changes}, true, report)
			return nil
		}()
	}()
	p.types(
		"Queue: ", "\r",
		"Queue: ", "b 200\r",
		"Queue: ", bktest.DefaultAgentToken+"=bkct_x1y2z3\r",
		"Queue: ", "{nothing}\r",
		"Queue: ", "b2000\x7f\r", // corrected
		"Agent token (not shown): ", "\r",
		"Agent token (not shown): ", "a token\r",
		"Agent token (not shown): ", "bkct_of-another\r",
		"Agent token (not shown): ", "  "+bktest.DefaultAgentToken+"\r",
		"[y/N] ", "y\r",
	)
	must.Do(t, <-done)
	if f.cfg.Queue != "b200" || f.token != bktest.DefaultAgentToken || !p.echoes() {
		t.Errorf("queue %q, token %q, echo %t", f.cfg.Queue, f.token, p.echoes())
	}
	saw := p.saw()
	if strings.Count(saw, bktest.DefaultAgentToken) > 1 || strings.Contains(saw, "of-another") { // once as a queue
		t.Errorf("the screen shows a token:\n%s", saw)
	}
	golden(t, "install-dialog.txt", pretty.StripEscape(strings.ReplaceAll(saw, bk.Endpoint(), "ENDPOINT")))
}

// TestInstallAsksOnlyForWhatIsMissing counts the questions.
func TestInstallAsksOnlyForWhatIsMissing(t *testing.T) {
	machine := newNode(t, 1)
	bk := machine.serve(t)
	defer func() { _ = bk.Close() }()
	variable := func(name string) string {
		return map[string]string{"BUILDKITE_AGENT_TOKEN": bktest.DefaultAgentToken, "GPU_TYPE": "b200"}[name]
	}
	for _, tt := range []struct {
		name         string
		queue, token string
		env          func(string) string
		dryRun       bool
		dialog       []string
		want         []string // flags of the same without questions
	}{
		{name: "nothing", queue: "b200", token: "given-token", env: noEnv},
		{name: "nothing, with variables", env: variable},
		{name: "the queue", token: "given-token", env: noEnv, dialog: []string{"Queue: ", "other\r"}, want: []string{"--queue", "other"}},
		{name: "the token", queue: "other", env: noEnv, dialog: []string{"Agent token (not shown): ", bktest.DefaultAgentToken + "\r", "no queue other, or no agent in it yet", ""}, want: []string{"--token-file", "token.txt"}},
		{name: "nothing, in a dry run without a token", queue: "b200", env: noEnv, dryRun: true},
		{name: "the queue, in a dry run without a token", env: noEnv, dryRun: true, dialog: []string{"Queue: ", "other\r"}, want: []string{"--queue", "other"}},
	} {
		p := newPerson(t, 80)
		f := &installFlags{token: tt.token, dryRun: tt.dryRun}
		f.cfg.Queue, f.cfg.Agent.Endpoint = tt.queue, bk.Endpoint()
		n := &node.Node{Root: machine.root, Log: term.Streams{Err: t.Output()}.Logger()}
		must.Do(t, f.load(n, tt.env))
		done := make(chan error)
		go func() { done <- f.ask(t.Context(), p.streams("install"), n, tt.env) }()
		p.types(tt.dialog...)
		if err := <-done; err != nil || f.asked != (tt.dialog != nil) || strings.Join(f.added, " ") != strings.Join(tt.want, " ") {
			t.Errorf("%s: %v, asked %t, flags %q", tt.name, err, f.asked, f.added)
		}
		if saw := p.saw(); (saw == "") != (tt.dialog == nil) {
			t.Errorf("%s: %q", tt.name, saw)
		}
	}
}

// TestInstallRefusesBeforeItAsks has a machine on which no answer helps.
func TestInstallRefusesBeforeItAsks(t *testing.T) {
	p := newPerson(t, 80)
	m := serverOf(1)
	m.Live = nil
	n := &node.Node{Root: m.Dir(t), Log: term.Streams{Err: t.Output()}.Logger()}
	f := &installFlags{}
	must.Do(t, f.load(n, noEnv))
	err := f.ask(t.Context(), p.streams("install"), n, noEnv)
	must.Err(t, err, "systemd does not report its version")
	if saw := p.saw(); strings.Contains(saw, "Queue:") {
		t.Error(saw)
	}
}

// dialogRoot names the machine of files for which this program, started again, is kbnode install.
const dialogRoot = "KBNODE_TEST_DIALOG"

// dialogOf asks the questions of an installation as Main does, and then to confirm it.
func dialogOf(root string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := term.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Typed: []string{"install"}, Root: true}
	n := &node.Node{Root: root, Log: s.Logger()}
	f := &installFlags{}
	f.cfg.Agent.Endpoint = "http://127.0.0.1:1/v3" // no one there: the answer is taken
	err := f.load(n, noEnv)
	if err == nil {
		err = f.ask(ctx, s, n, noEnv)
	}
	if err == nil {
		err = confirmInstall(ctx, s, f, nil)
	}
	if !errors.Is(err, term.ErrDeclined) {
		fmt.Println("went on:", err)
		return 3
	}
	fmt.Println(err)
	return 1
}

// TestInstallIsLeft leaves each question in each way, in a process whose terminal it is.
func TestInstallIsLeft(t *testing.T) {
	machine := newNode(t, 1)
	queue, token := []string{"Queue: ", "b200\r"}, []string{"Agent token (not shown): ", "bkct_abcdef\r"}
	questions := [][]string{{"Queue: "}, slices.Concat(queue, token[:1]), slices.Concat(queue, token, []string{"[y/N] "})}
	for _, q := range questions {
		for name, key := range map[string]string{"Ctrl-C": "\x03", "Ctrl-C after some letters": "abc\x03", "Ctrl-D": "\x04", "SIGTERM": "kill", "no": "n\r", "the next answer typed ahead": "bkct_abcdef\nn\n"} {
			at := strings.TrimSpace(q[len(q)-1])
			if key == "n\r" && at != "[y/N]" || len(key) > 5 && at != "Agent token (not shown):" {
				continue
			}
			t.Run(at+" "+name, func(t *testing.T) {
				t.Parallel()
				p := newPerson(t, 80)
				ctx, cancel := context.WithTimeout(t.Context(), must.Patience)
				defer cancel()
				cmd := exec.CommandContext(ctx, os.Args[0])
				cmd.Env = append(os.Environ(), dialogRoot+"="+machine.root)
				cmd.Stdin, cmd.Stdout, cmd.Stderr = p.tty, p.tty, p.tty
				cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
				must.Do(t, cmd.Start())
				if key == "kill" {
					p.types(append(slices.Clone(q), "")...)
					must.Do(t, cmd.Process.Signal(syscall.SIGTERM))
				} else {
					p.types(append(slices.Clone(q), key)...)
				}
				err := cmd.Wait()
				if code := cmd.ProcessState.ExitCode(); code != 1 || !p.echoes() {
					t.Errorf("%v, exit code %d, echo %t", err, code, p.echoes())
				}
				if saw := p.saw(); !strings.HasSuffix(saw, "nothing was changed\n") || len(key) < 6 && !strings.HasSuffix(saw, "\nnothing was changed\n") {
					t.Errorf("%q", saw)
				}
			})
		}
	}
}

// TestConfirmInstallAtATerminal asks once, whatever there is to agree to.
func TestConfirmInstallAtATerminal(t *testing.T) {
	changes := []reconcile.Change{{Kind: reconcile.Create, Subject: "/etc/a"}, {Kind: reconcile.Adopt, Subject: "/etc/b"}}
	for _, tt := range []struct {
		flags             installFlags
		asks, answer, err string
	}{
		{installFlags{adopt: true}, "Replace 1 file and keep backups? [y/N] ", "y\r", ""},
		{installFlags{adopt: true}, "Replace 1 file and keep backups? [y/N] ", "Yes\r", ""},
		{installFlags{adopt: true}, "Replace 1 file and keep backups? [y/N] ", "\r", "nothing was changed"},
		{installFlags{adopt: true, ran: true}, "? [y/N] ", "yess\r", "packages were installed; nothing else was changed"},
		{installFlags{adopt: true, asked: true}, "Make this machine a node (2 changes), replace 1 file and keep backups? [y/N] ", "y\r", ""},
	} {
		p := newPerson(t, 80)
		done := make(chan error)
		go func() { done <- confirmInstall(t.Context(), p.streams("install"), &tt.flags, changes) }()
		p.types(tt.asks, tt.answer)
		if err := <-done; (err == nil) != (tt.err == "") || err != nil && err.Error() != tt.err {
			t.Errorf("%+v: %v, want %q", tt.flags, err, tt.err)
		}
		must.Equal(t, 1, strings.Count(p.saw(), "[y/N]"))
	}
}

// TestTokenFileIsReadOnce reads tokens from pipes, which have nothing to read again.
func TestTokenFileIsReadOnce(t *testing.T) {
	t.Parallel()
	pipe := func() string {
		name := filepath.Join(t.TempDir(), "pipe")
		must.Do(t, unix.Mkfifo(name, 0o600))
		return name
	}
	f := &installFlags{tokenFile: pipe()}
	go func() {
		if w, err := os.OpenFile(f.tokenFile, os.O_WRONLY, 0); err == nil {
			_, _ = w.WriteString("token-from-pipe\n")
			_ = w.Close()
		}
	}()
	s := term.Streams{Root: true}
	if err := f.check(t.Context(), s); err != nil || f.token != "token-from-pipe" {
		t.Errorf("%q, %v", f.token, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	f = &installFlags{tokenFile: pipe()} // no one writes
	if err := f.check(ctx, s); !errors.Is(err, term.ErrDeclined) {
		t.Error(err)
	}
}
