package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// screen is a person who gives an answer to each question, and what he sees. An empty answer leaves the question.
type screen struct {
	answers map[string]string
	asked   func(question string) // called with each question
	agents  func()                // called when it sees how many agents have registered
	saw     []string
}

func (s *screen) see(format string, args ...any) { s.saw = append(s.saw, fmt.Sprintf(format, args...)) }

func (s *screen) ask(question string, take func(string) error) error {
	s.see("%s?", question)
	if s.asked != nil {
		s.asked(question)
	}
	if s.answers[question] == "" {
		return ErrDeclined
	}
	return take(s.answers[question])
}

func (s *screen) agree(question string) error {
	return s.ask(question, func(string) error { return nil })
}

func (s *screen) Warn(format string, args ...any) { s.see("warning: "+format, args...) }
func (s *screen) Welcome()                        { s.see("welcome") }
func (s *screen) AskQueue(_ context.Context, take func(string) error) error {
	return s.ask("queue", take)
}

func (s *screen) AskToken(_ context.Context, take func(string) error) error {
	return s.ask("token", take)
}
func (s *screen) ConfirmPackages(context.Context) error { return s.agree("packages") }
func (s *screen) Confirm(_ context.Context, p Proposal) error {
	return s.agree(fmt.Sprintf("%d replaced, asked %t, token in a file %t, flags %s",
		len(p.Adoptions), p.Dialog, p.TokenFile, strings.Join(p.Flags, " ")))
}
func (s *screen) ShowPlan(p *plan.Plan, _ []reconcile.Change) {
	s.see("%d slots planned", len(p.Slots))
}
func (s *screen) ShowChange(reconcile.Change) {
	if !slices.Contains(s.saw, "changing") {
		s.see("changing")
	}
}
func (s *screen) ShowAgents(registered, total int) {
	s.see("%d of %d registered", registered, total)
	if s.agents != nil {
		s.agents()
	}
}
func (s *screen) ShowImage(p image.Progress) {
	if p.Layer == "" {
		s.see("%s", p.Status)
	}
}
func (s *screen) EndProgress() {}

// bareMachine returns a machine of one GPU that is no node, with a systemd whose agents register at once.
func bareMachine(t *testing.T) (*reconcile.Host, *systemdtest.Systemd) {
	t.Helper()
	m := machinetest.Machine{
		Name: "one", Packages: 1, Nodes: 1, Cores: 24, Threads: 2, CoresPerL3: 8, NodeBytes: 128 << 30, NVIDIADriver: "580.95.05",
		NVIDIA: []machinetest.NVIDIA{{
			PCI: "0000:01:00.0", Device: "2901", Model: "NVIDIA B200", UUID: "GPU-29010000-0000-4000-8000-000000000001",
		}},
		Files: map[string]string{"usr/bin/buildkite-agent": "#!/bin/sh\n"},
	}
	m.Live = machinetest.Live(m)
	root := m.Dir(t)
	sd, err := systemdtest.New(root, "0-47", "0")
	must.Do(t, err)
	host := &reconcile.Host{Root: root, Systemd: sd, Users: systemdtest.Users{Root: root}}
	sd.Hook = func(call string) error {
		if startsAgent(call) {
			must.Write(t, root, slot.RegisteredMarker(0), "")
		}
		if _, err := host.Lock(); !errors.As(err, new(*reconcile.LockedError)) {
			t.Errorf("%s, and the machine is not locked: %v", call, err)
		}
		return nil
	}
	return host, sd
}

func startsAgent(call string) bool {
	return strings.HasPrefix(call, "start ") && strings.Contains(call, plan.AgentUnit(0))
}

// installs installs on a machine as kbnode install does when it is open, and checks that it is not locked then.
func installs(t *testing.T, host *reconcile.Host, o InstallOptions, ui *screen) (Report, error) {
	t.Helper()
	o.Env, o.Config.Node, o.Again = noEnv, "one", "AGAIN"
	o.Config.Agent.Endpoint = "http://127.0.0.1:1/v3" // no one there
	n := &Node{Root: host.Root, Log: slog.New(slog.DiscardHandler), Say: ui.see}
	must.Do(t, n.Load(o.Env, o.Config))
	report, err := n.InstallOn(t.Context(), host, o, ui)
	free(t, host)
	return report, err
}

// free checks that no one holds the lock.
func free(t *testing.T, host *reconcile.Host) {
	t.Helper()
	release, err := host.Lock()
	must.Do(t, err)
	release()
}

// untouched checks that no file was written but the lock.
func untouched(t *testing.T, root string, before []string) {
	t.Helper()
	isLock := func(name string) bool { return strings.HasSuffix(name, plan.LockPath) }
	must.Equal(t, before, slices.DeleteFunc(filesBelow(t, root), isLock))
}

func filesBelow(t *testing.T, root string) (names []string) {
	t.Helper()
	must.Do(t, filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, name)
		}
		return err
	}))
	return names
}

func noEnv(string) string { return "" }

// TestInstall shows the steps of an installation in their order, and that a second one has nothing to do.
func TestInstall(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	host, _ := bareMachine(t)
	must.Write(t, host.Root, "etc/systemd/system/"+plan.AgentUnit(0), "[Service]\n")
	o := InstallOptions{Config: config.Config{Queue: "b200"}, Token: "the-agent-token", Adopt: true, Yes: true}
	before := filesBelow(t, host.Root)

	dry := o
	dry.DryRun, dry.Token = true, ""
	ui := &screen{}
	report, err := installs(t, host, dry, ui)
	must.Do(t, err)
	must.Equal(t, []string{"reading the machine", "warning: " + errNoToken.Error(), "1 slots planned"}, ui.saw)
	planned := len(report.Changes)
	untouched(t, host.Root, before)

	ui = &screen{}
	report, err = installs(t, host, o, ui)
	must.Do(t, err)
	ui.saw = slices.DeleteFunc(ui.saw, func(line string) bool { return strings.HasPrefix(line, "warning: ") })
	must.Equal(t, []string{"reading the machine", "checking the token with Buildkite", "1 slots planned", "changing", "1 of 1 registered"}, ui.saw)
	if !report.WroteToken || planned == 0 || len(report.Result.Applied) != planned || report.Plan.Node != "one" || report.Health != nil {
		t.Errorf("%d planned; %+v", planned, report)
	}

	o.Token = "" // it is stored
	report, err = installs(t, host, o, &screen{})
	if err != nil || report.WroteToken || len(report.Result.Applied) > 0 {
		t.Errorf("again: %v, %+v", err, report)
	}
}

// TestInstallRefuses checks what ends an installation before anything is written.
func TestInstallRefuses(t *testing.T) {
	t.Parallel()
	given := InstallOptions{Config: config.Config{Queue: "b200"}, Token: "the-agent-token"}
	noToken, twoGPUs, adopting := given, given, given
	noToken.Token, twoGPUs.Config.GPUCount, adopting.Adopt = "", 2, true
	writes := func(name, text string) func(*testing.T, string) {
		return func(t *testing.T, root string) { t.Helper(); must.Write(t, root, name, text) }
	}
	foreign := writes("etc/systemd/system/"+plan.AgentUnit(0), "[Service]\n")
	silent := func(t *testing.T, root string) {
		t.Helper()
		must.Do(t, os.Remove(filepath.Join(root, "kbnode/live.json")))
	}
	for _, tt := range []struct {
		name    string
		o       InstallOptions
		breaks  func(t *testing.T, root string)
		answers map[string]string
		err     string
		usage   bool
		asks    string // the last question
	}{
		{name: "no agent token", o: noToken, err: errNoToken.Error()},
		{name: "a token file that is still empty", o: noToken, breaks: writes(plan.TokenPath, "BUILDKITE_AGENT_TOKEN=\n"), err: "no agent token found"},
		{name: "a token that is none", o: noToken, breaks: writes(plan.TokenPath, "BUILDKITE_AGENT_TOKEN=xxx\n"), err: "malformed", usage: true},
		{name: "another token in an operator's file", o: given, breaks: writes(plan.TokenPath, "another-token\n"), err: "contains a different token", usage: true},
		{name: "a plan that cannot be", o: twoGPUs, err: "GPU"},
		{name: "files of others", o: given, breaks: foreign, err: "not written by kbnode; move it away, or use --adopt", usage: true},
		{name: "files of others, kept", o: adopting, breaks: foreign, err: ErrDeclined.Error(), asks: "1 replaced, asked false, token in a file false, flags "},
		{name: "no queue", o: InstallOptions{Ask: true}, err: ErrDeclined.Error(), asks: "queue"},
		{name: "no token", o: InstallOptions{Ask: true}, answers: map[string]string{"queue": "b200"}, err: ErrDeclined.Error(), asks: "token"},
		{name: "no", o: InstallOptions{Ask: true}, answers: map[string]string{"queue": "b200", "token": "the-agent-token"},
			err: ErrDeclined.Error(), asks: "0 replaced, asked true, token in a file true, flags --queue b200 --token-file token.txt"},
		{name: "a machine on which no answer helps", o: InstallOptions{Ask: true}, breaks: silent, err: "systemd does not report its version"},
		{name: "a machine that lacks something", o: given, breaks: silent, err: "systemd does not report its version"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			host, sd := bareMachine(t)
			if tt.breaks != nil {
				tt.breaks(t, host.Root)
			}
			before := filesBelow(t, host.Root)
			last := ""
			ui := &screen{answers: tt.answers, asked: func(question string) {
				last = question
				free(t, host) // the daemon does not wait for a person
			}}
			_, err := installs(t, host, tt.o, ui)
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%v; want %q", err, tt.err)
			}
			if _, usage := errors.AsType[*config.InputError](err); usage != tt.usage {
				t.Errorf("wrong usage is %t: %v", usage, err)
			}
			must.Equal(t, tt.asks, last)
			untouched(t, host.Root, before)
			must.Equal(t, 0, len(sd.Words()))
		})
	}
}

// TestInstallAsks counts the questions.
func TestInstallAsks(t *testing.T) {
	t.Parallel()
	bk := bktest.New(bktest.Options{Queues: []string{"b200"}})
	must.Do(t, bk.Listen("127.0.0.1:0"))
	t.Cleanup(func() { _ = bk.Close() })
	host, _ := bareMachine(t)
	variable := func(name string) string {
		return map[string]string{"BUILDKITE_AGENT_TOKEN": bktest.DefaultAgentToken, "GPU_TYPE": "b200"}[name]
	}
	for _, tt := range []struct {
		name         string
		queue, token string
		env          func(string) string
		dryRun       bool
		saw          []string
		flags        string // of the same without questions
	}{
		{name: "nothing", queue: "b200", token: "given-token"},
		{name: "nothing, with variables", env: variable},
		{name: "the queue", token: "given-token", saw: []string{"welcome", "queue?"}, flags: "--queue other"},
		{name: "the token", queue: "other", flags: "--token-file token.txt", saw: []string{
			"welcome", "token?", "checking the token with Buildkite", "warning: the token's cluster has no queue other, or no agent in it yet; check the spelling"}},
		{name: "nothing, in a dry run without a token", queue: "b200", dryRun: true},
		{name: "the queue, in a dry run without a token", dryRun: true, saw: []string{"welcome", "queue?"}, flags: "--queue other"},
	} {
		if tt.env == nil {
			tt.env = noEnv
		}
		ui := &screen{answers: map[string]string{"queue": "other", "token": bktest.DefaultAgentToken}}
		n := &Node{Root: host.Root, Say: ui.see}
		i := &installation{n: n, ui: ui, InstallOptions: InstallOptions{
			Config: config.Config{Queue: tt.queue, Agent: config.Agent{Endpoint: bk.Endpoint()}}, Token: tt.token, Env: tt.env, DryRun: tt.dryRun, Ask: true}}
		must.Do(t, inOrder(t.Context(), i.load, i.ask))
		ui.saw = slices.DeleteFunc(ui.saw, func(line string) bool { return line == "reading the machine" })
		if !slices.Equal(ui.saw, tt.saw) || i.dialog != (tt.saw != nil) || strings.Join(i.flags, " ") != tt.flags {
			t.Errorf("%s: saw %q, asked %t, flags %q", tt.name, ui.saw, i.dialog, i.flags)
		}
	}
}

// TestPackagesStay says to a person who does not agree that packages were installed.
func TestPackagesStay(t *testing.T) {
	t.Parallel()
	i := &installation{ui: &screen{}, dialog: true, newPackages: true}
	must.Err(t, i.confirm(t.Context()), "packages were installed; nothing else was changed")
}

// TestInstallFails checks what is said of a step that fails when the installation has begun.
func TestInstallFails(t *testing.T) {
	t.Parallel()
	must.Root(t, "makes users")
	adopting := InstallOptions{Config: config.Config{Queue: "b200"}, Token: "the-agent-token", Adopt: true}
	for name, tt := range map[string]struct {
		file, text string // that appears while a person is asked
		err        string
		wrote      bool
	}{
		"a unit does not start":           {err: "changes); fix this and type AGAIN to continue", wrote: true},
		"another file appears meanwhile":  {file: "etc/systemd/system/" + plan.SliceName(0), text: "[Slice]\n", err: plan.SliceName(0) + ": appeared after you confirmed, and nothing was changed"},
		"another configuration meanwhile": {file: plan.ConfigPath, text: "queue: other\n", err: ErrByHand.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			host, sd := bareMachine(t)
			must.Write(t, host.Root, "etc/systemd/system/"+plan.AgentUnit(0), "[Service]\n")
			registers := sd.Hook
			sd.Hook = func(call string) error {
				if startsAgent(call) {
					return errors.New("no such device")
				}
				return registers(call)
			}
			ui := &screen{answers: map[string]string{"1 replaced, asked false, token in a file false, flags ": "y"}, asked: func(string) {
				if tt.file != "" {
					must.Write(t, host.Root, tt.file, tt.text)
				}
			}}
			_, err := installs(t, host, adopting, ui)
			must.Err(t, err, tt.err)
			must.Equal(t, tt.wrote, slices.Contains(ui.saw, "changing"))
		})
	}
}
