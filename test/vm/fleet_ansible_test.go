//go:build vm

package vm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// serveSSH lets other programs on this host run commands in the guest, whose own socket takes one
// connection only. A request has the command in its query and the input in its body.
func serveSSH(t *testing.T, m *vm.Machine, socket string) {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "unix", socket)
	must.Do(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		result, err := m.VM.Run(r.Context(), r.Body, "sh", "-c", r.URL.Query().Get("command"))
		if err != nil {
			result = vm.Result{Stderr: err.Error(), Code: 255}
		}
		_ = json.NewEncoder(w).Encode(result) // who asked may be gone
	})}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
}

// asSSH is this program when Ansible runs it in ssh's place: the last argument is the command. The
// arguments are kept, since everyone who lists processes on a node sees them.
func asSSH(socket string) int {
	if log, err := os.OpenFile(socket+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = fmt.Fprintln(log, os.Args[1:])
		_ = log.Close()
	}
	var input io.Reader = os.Stdin
	if info, err := os.Stdin.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
		input = nil // a terminal, which Ansible leaves open where it has nothing to send
	}
	client := http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}}
	var result vm.Result
	resp, err := client.Post("http://guest/?command="+url.QueryEscape(os.Args[len(os.Args)-1]), "", input) //nolint:noctx // as long as it takes
	if err == nil {
		err = json.NewDecoder(resp.Body).Decode(&result)
		_ = resp.Body.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 255
	}
	fmt.Fprint(os.Stderr, result.Stderr)
	fmt.Print(result.Stdout)
	return result.Code
}

const ansibleInventory = `nodes:
  hosts: {guest: {ansible_python_interpreter: /usr/bin/python3}}
  vars:
    queue: b200
    kbnode_source: %s
    kbnode_config:
      queue: "{{ queue }}"
      agent: {endpoint: "http://127.0.0.1:8899/v3"}
    kbnode_token: "{{ lookup('file', '%s') }}"
canary:
`

// control is a machine that runs Ansible.
type control struct {
	t           *testing.T
	m           *vm.Machine
	dir, socket string
}

func controlOf(t *testing.T, m *vm.Machine) *control {
	t.Helper()
	c := &control{t: t, m: m, dir: t.TempDir()}
	c.socket = filepath.Join(m.VM.Dir, "share.sock") // short enough for a socket's name
	serveSSH(t, m, c.socket)
	bin, err := filepath.Abs(os.Getenv("KBNODE_BIN"))
	must.Do(t, err)
	must.Write(t, c.dir, "inventory.yml", fmt.Sprintf(ansibleInventory, bin, filepath.Join(c.dir, "token")))
	return c
}

var recap = regexp.MustCompile(`(?m)^guest .* changed=(\d+) .* failed=(\d+) `)

// play runs the example playbook; failed tasks are the caller's business.
func (c *control) play(t *testing.T, args ...string) (out string, changed, failed int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), c.m.Limit(vm.Patience))
	defer cancel()
	self, err := os.Executable()
	must.Do(t, err)
	began := time.Now()
	cmd := exec.CommandContext(ctx, "ansible-playbook", append([]string{"-i", filepath.Join(c.dir, "inventory.yml"), "../../packaging/ansible/site.yml"}, args...)...)
	cmd.Env = append(os.Environ(), "KBVM_SOCKET="+c.socket, "ANSIBLE_SSH_EXECUTABLE="+self,
		"ANSIBLE_SSH_ARGS=-C", "ANSIBLE_SSH_TRANSFER_METHOD=piped", "ANSIBLE_PIPELINING=1",
		"ANSIBLE_REMOTE_USER=root", "ANSIBLE_NOCOLOR=1", "ANSIBLE_HOME="+c.dir, "ANSIBLE_LOCAL_TEMP="+filepath.Join(c.dir, "tmp"))
	cmd.WaitDelay = 10 * time.Second
	b, err := cmd.CombinedOutput()
	out = string(b)
	if n := recap.FindStringSubmatch(out); n != nil {
		changed, _ = strconv.Atoi(n[1])
		failed, _ = strconv.Atoi(n[2])
	} else {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%v: %d changed, %d failed, %v", args, changed, failed, time.Since(began).Round(time.Second))
	return out, changed, failed
}

// TestAnsible makes a node by the role of packaging/ansible, changes it and gives it back.
func TestAnsible(t *testing.T) {
	t.Parallel()
	m := vm.Fork(t)
	const fresh = "bktest-agent-token-of-march"
	m.Put("/root/tokens", 0o600, bktest.DefaultAgentToken+"\n"+fresh+"\n")
	m.Sh(`mkdir -p /etc/systemd/system/bkstub.service.d
		printf '[Service]\nExecStart=\nExecStart=/usr/local/bin/bkstub serve --repo https://github.com/gpu-mode/kernelbot --agent-tokens /root/tokens\n' >/etc/systemd/system/bkstub.service.d/tokens.conf
		systemctl daemon-reload; systemctl restart bkstub.service; rm /usr/local/bin/kbnode`)
	m.InstallPackages("python3") // the template has a part of it
	c := controlOf(t, m)
	must.Write(t, c.dir, "token", bktest.DefaultAgentToken+"\n")
	leaks := func(t *testing.T, out string) {
		t.Helper()
		for _, token := range []string{bktest.DefaultAgentToken, fresh} {
			if strings.Contains(out, token) {
				t.Errorf("Ansible shows the token: %s", out)
			}
		}
	}

	t.Run("check mode on a bare machine", func(t *testing.T) {
		out, changed, failed := c.play(t, "--check", "--diff")
		leaks(t, out)
		if changed == 0 || failed != 0 {
			t.Error(out)
		}
		m.Sh("! test -e /usr/local/bin/kbnode; ! test -e /etc/kbnode; ! getent passwd kbnode-gpu0")
	})
	t.Run("first", func(t *testing.T) {
		out, changed, failed := c.play(t, "--diff", "-vvv")
		leaks(t, out)
		if changed == 0 || failed != 0 {
			t.Fatal(out)
		}
		m.Sh("bkstub wait-agents --queue b200 --count 8 --timeout 3m")
		if got := m.Sh("cd /etc/kbnode; stat -c '%n %a %U' agent-token config.yaml; grep -c 'Written by kbnode' config.yaml || true"); got != "agent-token 600 root\nconfig.yaml 644 root\n0" {
			t.Errorf("what Ansible wrote: %s", got)
		}
		allIdle(t, m)
	})
	t.Run("again", func(t *testing.T) {
		before := m.Sh(writes)
		if out, changed, failed := c.play(t); changed != 0 || failed != 0 {
			t.Error(out)
		}
		must.Equal(t, before, m.Sh(writes))
	})
	t.Run("check mode and wrong values", func(t *testing.T) {
		before := m.Sh(writes)
		out, changed, failed := c.play(t, "--check", "--diff", "-e", "queue=b200-canary")
		leaks(t, out)
		if changed != 2 || failed != 0 || !strings.Contains(out, "\n+queue: b200-canary") || !strings.Contains(out, "update    /etc/buildkite-agent/agent-7/buildkite-agent.cfg") {
			t.Error(out)
		}
		for wrong, says := range map[string]string{
			`{"kbnode_config": {"queue": "b200", "queues": "b200"}}`: `unknown key \"queues\"; write \"queue\"`,
			`{"kbnode_config": {"node": "b200-1"}}`:                  "kbnode_config has no queue",
			`{"kbnode_state": "gone"}`:                               "value of kbnode_state must be one of: present, absent, got: gone",
		} {
			if out, changed, failed := c.play(t, "-e", wrong); changed != 0 || failed != 1 || !strings.Contains(out, says) {
				t.Error(out)
			}
		}
		must.Equal(t, before, m.Sh(writes))
	})
	t.Run("a canary beside a job", func(t *testing.T) {
		wake := asleep(t, m, 5)
		out, changed, failed := c.play(t, "-e", "queue=b200-canary")
		if changed == 0 || failed != 0 {
			t.Error(out)
		}
		m.Sh("bkstub wait-agents --queue b200-canary --count 7 --timeout 3m; (kbnode status --json || true) | jq -e '.slots[5].job'")
		wake()
		m.Sh("bkstub wait-agents --queue b200-canary --count 8 --timeout 3m")
		allIdle(t, m)
	})
	t.Run("another token", func(t *testing.T) {
		const pids = "systemctl show -P MainPID 'buildkite-agent-gpu*'"
		before := m.Sh(pids)
		must.Write(t, c.dir, "token", "bktest-agent-token-of-nobody\n")
		if out, _, failed := c.play(t, "-e", "queue=b200-canary"); failed != 1 || !strings.Contains(out, "refuses the agent token") {
			t.Error(out)
		}
		m.Sh("grep -q =" + bktest.DefaultAgentToken + "$ /etc/buildkite-agent/token")
		must.Write(t, c.dir, "token", fresh+"\n")
		out, changed, failed := c.play(t, "--diff", "-vvv", "-e", "queue=b200-canary")
		leaks(t, out)
		if changed != 2 || failed != 0 {
			t.Error(out)
		}
		if got := m.Sh("cat /etc/buildkite-agent/token"); !strings.Contains(got, fresh) {
			t.Errorf("the node's token is not the fresh one")
		}
		must.Equal(t, before, m.Sh(pids))
		m.Put("/root/pattern", 0o600, bktest.DefaultAgentToken+"\n"+fresh+"\n")
		if got := m.Sh("grep -rlFf /root/pattern --exclude=image /etc /run/systemd /var/lib/kbnode /var/log /root/.ansible /tmp /var/tmp 2>/dev/null || true; journalctl -b -o cat | grep -cFf /root/pattern || true"); got != "/etc/kbnode/agent-token\n/etc/buildkite-agent/token\n0" && got != "/etc/buildkite-agent/token\n/etc/kbnode/agent-token\n0" {
			t.Errorf("a token stands in: %s", got)
		}
		leaks(t, must.Read(t, c.socket+".log"))
	})
	t.Run("absent", func(t *testing.T) {
		m.Put("/root/steps.yml", 0o600, strings.Replace(step(2, "busybox:test", "sleep 60", ""), "queue: b200", "queue: b200-canary", 1))
		build := m.Sh("bkstub submit --queue b200-canary --steps /root/steps.yml")
		m.Wait("the job", "kbnode status --json | jq -e '.slots[2].job'")
		if out, changed, failed := c.play(t, "-e", "kbnode_state=absent"); changed != 2 || failed != 0 {
			t.Error(out)
		}
		m.Sh(pipelines{evaluations{m: m}}.asking(build) + " | jq -e '.state == \"passed\"'")
		m.Sh("! test -e /usr/local/bin/kbnode; ! test -e /etc/kbnode; ! test -e /etc/buildkite-agent; ! getent passwd kbnode-gpu0; ! test -e /var/lib/kbnode")
		if out, changed, failed := c.play(t, "-e", "kbnode_state=absent"); changed != 0 || failed != 0 {
			t.Error(out)
		}
	})
}
