package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
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

// dialog is an installation of a machine of files that ends when a person has agreed.
type dialog struct {
	installUI
	report node.Report // as if all that was agreed to had been done
}

var errAgreed = errors.New("it went on")

func (d *dialog) Confirm(ctx context.Context, p node.Proposal) error {
	if err := d.installUI.Confirm(ctx, p); err != nil {
		return err
	}
	return errAgreed
}

func (d *dialog) ShowPlan(p *plan.Plan, changes []reconcile.Change) {
	d.report = node.Report{Plan: p, Result: reconcile.Result{Applied: changes}, WroteToken: true}
	d.installUI.ShowPlan(p, changes)
}

// dialogOn has a dialog about the machine below root.
func dialogOn(ctx context.Context, s term.Streams, root string, cfg config.Config) (node.Report, error) {
	d := &dialog{installUI: installUI{Streams: s}}
	reads := 0
	n := &node.Node{Root: root, Log: slog.New(slog.DiscardHandler), Say: func(format string, args ...any) {
		reads++
		if reads == 1 || format != "reading the machine" { // again, with the lock
			s.Progress(format, args...)
		}
	}}
	err := n.Load(noEnv, cfg)
	if err == nil {
		_, err = n.InstallOn(ctx, &reconcile.Host{Root: root}, node.InstallOptions{Config: cfg, Env: noEnv, Ask: true}, d)
	}
	return d.report, err
}

// TestInstallDialog is an installation by a person who mistypes every answer once, on a machine of
// files. Only what it changes is left out.
func TestInstallDialog(t *testing.T) {
	machine := newNode(t, 4)
	bk := machine.serve(t)
	defer func() { _ = bk.Close() }()

	p := newPerson(t, 80)
	s := p.streams("install", "--node", "box")
	done := make(chan error)
	go func() {
		report, err := dialogOn(t.Context(), s, machine.root, config.Config{Node: "box", Agent: config.Agent{Endpoint: bk.Endpoint()}})
		if errors.Is(err, errAgreed) {
			report.Health = &doctor.Report{Fit: true, Checks: []doctor.Result{
				{ID: "image-present", Group: "image", Status: doctor.Warn, Findings: []doctor.Finding{{Status: doctor.Warn, Detail: "not here"}}},
				{ID: "gpu-present", Group: "gpu", Status: doctor.OK},
			}}
			nextSteps(s, report, "")
		}
		done <- err
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
	if err := <-done; !errors.Is(err, errAgreed) || !p.echoes() {
		t.Errorf("%v, echo %t", err, p.echoes())
	}
	saw := p.saw()
	if strings.Count(saw, bktest.DefaultAgentToken) > 1 || strings.Contains(saw, "of-another") { // once as a queue
		t.Errorf("the screen shows a token:\n%s", saw)
	}
	golden(t, "install-dialog.txt", pretty.StripEscape(strings.ReplaceAll(saw, bk.Endpoint(), "ENDPOINT")))
}

// dialogRoot names the machine of files for which this program, started again, is kbnode install.
const dialogRoot = "KBNODE_TEST_DIALOG"

// dialogOf is an installation as Main runs it, until it is agreed to.
func dialogOf(root string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := term.Streams{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Typed: []string{"install"}, Root: true, Commands: Commands()}
	// No one is at the endpoint: the token is taken.
	_, err := dialogOn(ctx, s, root, config.Config{Agent: config.Agent{Endpoint: "http://127.0.0.1:1/v3"}})
	fmt.Println(err)
	if !errors.Is(err, node.ErrDeclined) {
		return 3
	}
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

// TestConfirmAtATerminal asks once, whatever there is to agree to.
func TestConfirmAtATerminal(t *testing.T) {
	changes := []reconcile.Change{{Kind: reconcile.Create, Subject: "/etc/a"}, {Kind: reconcile.Adopt, Subject: "/etc/b", Diff: "-theirs\n+ours\n"}}
	for _, tt := range []struct {
		dialog            bool
		asks, answer, err string
	}{
		{false, "Replace 1 file and keep backups? [y/N] ", "y\r", ""},
		{false, "Replace 1 file and keep backups? [y/N] ", "Yes\r", ""},
		{false, "Replace 1 file and keep backups? [y/N] ", "\r", "nothing was changed"},
		{false, "Replace 1 file and keep backups? [y/N] ", "yess\r", "nothing was changed"},
		{true, "Make this machine a node (2 changes), replace 1 file and keep backups? [y/N] ", "y\r", ""},
	} {
		p := newPerson(t, 80)
		done := make(chan error)
		ui := &installUI{Streams: p.streams("install")}
		go func() {
			done <- ui.Confirm(t.Context(), node.Proposal{Changes: changes, Adoptions: changes[1:], Dialog: tt.dialog})
		}()
		p.types(tt.asks, tt.answer)
		if err := <-done; (err == nil) != (tt.err == "") || err != nil && (err.Error() != tt.err || !errors.Is(err, node.ErrDeclined)) {
			t.Errorf("%+v: %v", tt, err)
		}
		saw := p.saw()
		must.Equal(t, 1, strings.Count(saw, "[y/N]"))
		must.Contain(t, saw, "+ours")
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
	name := pipe()
	go func() {
		if w, err := os.OpenFile(name, os.O_WRONLY, 0); err == nil {
			_, _ = w.WriteString("token-from-pipe\n")
			_ = w.Close()
		}
	}()
	f := &installFlags{tokenFile: name}
	if o, err := f.options(t.Context(), term.Streams{Root: true, Commands: Commands()}); err != nil || o.Token != "token-from-pipe" {
		t.Errorf("%q, %v", o.Token, err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	f = &installFlags{tokenFile: pipe()} // no one writes
	if _, err := f.options(ctx, term.Streams{Root: true, Commands: Commands()}); !errors.Is(err, term.ErrDeclined) {
		t.Error(err)
	}
}
