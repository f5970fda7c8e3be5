package node

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/systemdtest"
)

// TestUmask opens this machine as root of a hardened one. It is not parallel: the mask is the process's.
func TestUmask(t *testing.T) {
	before := syscall.Umask(0o077)
	host, err := (&Node{Root: "/"}).Open(t.Context())
	if set := syscall.Umask(before); set != 0o022 {
		t.Errorf("the umask is %#o", set)
	}
	if err == nil { // systemd runs here
		host.Close()
	}
}

func TestUsableBinary(t *testing.T) {
	t.Parallel()
	// A program of the distribution is where kbnode should be.
	shell, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Skip("no /bin/sh here")
	}
	if err := usableBinary(shell); err != nil {
		t.Errorf("%s: %v", shell, err)
	}
	temporary := must.Write(t, t.TempDir(), "kbnode", "")
	err = usableBinary(temporary)
	if want := "type sudo install -m 755 " + temporary + " /usr/local/bin/kbnode"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v; want %q", err, want)
	}
	if err := usableBinary(temporary + "-gone"); err == nil {
		t.Error("a binary that is not there is taken")
	}
}

func TestUsablePart(t *testing.T) {
	t.Parallel()
	const copied = "; type sudo install -m 755 EXE /usr/local/bin/kbnode"
	for _, tt := range []struct {
		exe, part string
		owner     uint32
		mode      os.FileMode
		says      string // its end; "" is usable
	}{
		{Binary, Binary, 0, 0o755, ""},
		{Binary, "/usr/local/bin", 0, 0o755, ""},
		{Binary, "/usr/local/bin", 0, 0o775, "and /usr/local/bin has mode 0775; type sudo chmod go-w /usr/local/bin"}, // Debian's group staff
		{Binary, Binary, 0, 0o757, "and /usr/local/bin/kbnode has mode 0757; type sudo chmod go-w /usr/local/bin/kbnode"},
		{Binary, "/usr/local", 1000, 0o755, "and /usr/local belongs to user 1000; type sudo chown root /usr/local"},
		{Binary, "/", 0, 0o777, "and / has mode 0777; type sudo chmod go-w /"},
		{"/usr/local/bin/kbnode-2", "/usr/local/bin/kbnode-2", 0, 0o775, "has mode 0775" + copied},
		{"/usr/local/bin/kbnode-2", "/usr/local/bin", 0, 0o775, "type sudo chmod go-w /usr/local/bin"},
		{"/home/me/kbnode", "/home/me/kbnode", 1000, 0o755, "and /home/me/kbnode belongs to user 1000" + copied},
		{"/tmp/kbnode", "/tmp", 0, 0o777, "and /tmp is not permanent" + copied},
		{"/opt/kbnode", "/opt", 0, 0o775, "and /opt has mode 0775" + copied},
	} {
		err := usablePart(tt.exe, tt.part, tt.owner, tt.mode)
		if want := strings.ReplaceAll(tt.says, "EXE", tt.exe); (err == nil) != (want == "") || err != nil && !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s, %s: %v, want %q", tt.exe, tt.part, err, want)
		}
	}
}

func TestFindToken(t *testing.T) {
	t.Parallel()
	const fromEnv, kept, old, older = "token-from-env", "token-kept", "token-old", "token-older"
	for _, tt := range []struct {
		name       string
		env, adopt bool
		tree       map[string]string
		want, err  string
	}{
		{name: "the environment before the machine", env: true, tree: map[string]string{plan.TokenPath: kept}, want: fromEnv},
		{name: "an earlier install", adopt: true, tree: map[string]string{plan.TokenPath: agent.RenderToken(kept), "/etc/buildkite-agent/buildkite-agent-gpu0.cfg": "token=\"" + old + "\"\n"}, want: kept},
		{name: "what is adopted", adopt: true, tree: map[string]string{
			"/etc/buildkite-agent/buildkite-agent-gpu0.cfg":    "# agent\nname=\"a-%hostname\"\ntoken=\"" + old + "\"\ntags=\"queue=x\"\n",
			"/etc/buildkite-agent/agent-1/buildkite-agent.cfg": "token=\"" + older + "\"\n",
		}, want: old},
		{name: "what is adopted, in the other scripts' place", adopt: true, tree: map[string]string{
			"/etc/buildkite-agent/buildkite-agent.cfg":         "token=\"xxx\"\n", // as the package installs it
			"/etc/buildkite-agent/agent-1/buildkite-agent.cfg": "token=\"" + older + "\"\n",
		}, want: older},
		{name: "an old setup without --adopt", tree: map[string]string{"/etc/buildkite-agent/buildkite-agent-gpu0.cfg": "token=\"" + old + "\"\n"}, err: "no agent token is given"},
		{name: "a broken file of an earlier install", adopt: true, tree: map[string]string{plan.TokenPath: "\n", "/etc/buildkite-agent/buildkite-agent-gpu0.cfg": "token=\"" + old + "\"\n"}, err: "no agent token found"},
		{name: "none at all", err: "add --token-file FILE, or set BUILDKITE_AGENT_TOKEN"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			for name, text := range tt.tree {
				must.Write(t, root, name, text)
			}
			env := func(name string) string {
				if tt.env && name == "BUILDKITE_AGENT_TOKEN" {
					return fromEnv
				}
				return ""
			}
			got, err := findToken(root, env, tt.adopt)
			if got != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("got %q, %v; want %q, %q", got, err, tt.want, tt.err)
			}
			if err != nil && strings.Contains(err.Error(), old) {
				t.Errorf("the error tells a token: %v", err)
			}
		})
	}
}

func TestWriteToken(t *testing.T) {
	t.Parallel()
	must.Root(t, "gives the file to root")
	const token = "the-new-token"
	for _, tt := range []struct {
		name, have string
		adopt      bool
		node       bool // kbnode install has run
		wrote      bool
		want, err  string
	}{
		{name: "a new machine", wrote: true, want: agent.RenderToken(token)},
		{name: "kbnode's own file with the same token", have: agent.RenderToken(token), want: agent.RenderToken(token)},
		{name: "an operator's file with the same token", have: token + "\n", want: token + "\n"},
		{name: "kbnode's own file with another token", have: agent.RenderToken("the-old-token"), wrote: true, want: agent.RenderToken(token)},
		{name: "an operator's file with another token", have: "the-old-token\n", want: "the-old-token\n", err: plan.TokenPath + " contains a different token and was not written by kbnode; delete it, or use --adopt"},
		{name: "an operator's file that a node uses, with the same token", have: token + "\n", node: true, want: token + "\n"},
		{name: "an operator's file that a node uses, with another token", have: "the-old-token\n", node: true, wrote: true, want: agent.RenderToken(token)},
		{name: "an operator's file that a node uses, without a token", have: "\n", node: true, wrote: true, want: agent.RenderToken(token)},
		{name: "an operator's file that is given up", have: "the-old-token\n", adopt: true, wrote: true, want: agent.RenderToken(token)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			file := filepath.Join(root, plan.TokenPath)
			if tt.have != "" {
				must.Write(t, root, plan.TokenPath, tt.have)
				must.Do(t, os.Chmod(file, 0o644))
			}
			if tt.node {
				must.Write(t, root, plan.BindingsPath, "{}")
			}
			wrote, err := WriteToken(&reconcile.Host{Root: root, Adopt: tt.adopt}, token)
			if wrote != tt.wrote || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Errorf("wrote %t, %v; want %t, %q", wrote, err, tt.wrote, tt.err)
			}
			got := must.Read(t, file)
			must.Equal(t, tt.want, got)
			if fi, err := os.Stat(file); tt.err == "" && (err != nil || fi.Mode() != 0o600) {
				t.Errorf("mode %v, %v; want 0600", fi.Mode(), err)
			}
			kept, _ := filepath.Glob(filepath.Join(root, reconcile.BackupDir, plan.TokenPath+"*"))
			if backup := tt.wrote && tt.have != "" && !plan.IsMarked(tt.have); backup != (len(kept) == 1) {
				t.Errorf("backups %q; want one: %t", kept, backup)
			}
		})
	}
}

// TestOnlyWhatWasAgreedTo checks that a file that appears while a person is asked is not
// replaced.
func TestOnlyWhatWasAgreedTo(t *testing.T) {
	t.Parallel()
	changes := []reconcile.Change{{Kind: reconcile.Adopt, Subject: "/etc/a"}, {Kind: reconcile.Create, Subject: "/etc/b"}, {Kind: reconcile.Adopt, Subject: "/etc/c"}}
	must.Do(t, onlyAgreed(changes, []string{"/etc/a", "/etc/c", "/etc/gone"}))
	if err := onlyAgreed(changes, []string{"/etc/a"}); err == nil || !strings.HasPrefix(err.Error(), "/etc/c: appeared after you confirmed") {
		t.Errorf("error is %v", err)
	}
}

func TestRegistered(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name  string
		state slot.State
		want  bool
	}{
		{"registered", slot.State{Agent: systemdtest.Agent("active", "running"), Registered: true}, true},
		{"not yet", slot.State{Agent: systemdtest.Agent("active", "running")}, false},
		{"runs a job", slot.State{Agent: systemdtest.Agent("active", "running"), Job: &slot.Job{ID: "7"}}, true},
		{"stops, and starts again later", slot.State{Agent: systemdtest.Agent("deactivating", "stop-sigterm")}, true},
	} {
		if got := UsesBuildkite(tt.state); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

func TestFailedToStart(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		unit slot.Unit
		want bool
	}{
		{"runs", systemdtest.Agent("active", "running"), false},
		{"comes up", systemdtest.Agent("activating", "start"), false},
		{"gave up", systemdtest.Agent("failed", "failed"), true},
		{"is started again after a refusal", slot.Unit{Active: "activating", Sub: "auto-restart", ExitStatus: 1}, true},
		{"its slot cannot be cleared", slot.Unit{Active: "activating", Sub: "auto-restart", Result: "exit-code"}, true},
		{"its slot is cleared", slot.Unit{Active: "activating", Sub: "start-pre", Result: "success"}, false},
		{"is started again after a stop", slot.Unit{Active: "activating", Sub: "auto-restart", Result: "success"}, false},
	} {
		if got := (slot.State{Agent: tt.unit}).Failed(); got != tt.want {
			t.Errorf("%s: %t, want %t", tt.name, got, tt.want)
		}
	}
}

// Not parallel: the environment says where the bus is.
func TestDeafBus(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "bus")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	must.Do(t, err)
	defer func() { _ = l.Close() }()
	called := make(chan struct{})
	go func() {
		if conn, err := l.Accept(); err == nil { // and nothing more
			close(called)
			<-t.Context().Done()
			_ = conn.Close()
		}
	}()
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	life, end := context.WithCancel(t.Context())
	src := &source{n: &Node{Root: "/"}, life: life}
	asked := make(chan error)
	go func() {
		_, err := src.Units(t.Context(), "x.service")
		asked <- err
	}()
	<-called
	end()
	src.close() // hangs if it waits for a check
	if err := <-asked; err == nil {
		t.Error("a deaf bus answers")
	}
}
