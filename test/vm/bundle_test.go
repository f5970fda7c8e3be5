//go:build vm

package vm_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

const (
	bundledImage = "ghcr.io/gpu-mode/kernelbot:latest"
	withBundle   = installCommand + " --bundle /root/kbnode-bundle.tar"
)

// newBundle makes a bundle in the guest of the image that a shell's change makes, and removes the image.
func newBundle(m *vm.Machine, agent, change string) {
	m.Sh(fmt.Sprintf(`rm -f /root/kbnode-bundle.tar
		docker run --name making --network none kernelbot-test:latest sh -c 'head -c 20000000 /dev/urandom >/layer; %s' >/dev/null
		docker commit making %[2]s/made:1 >/dev/null; docker rm making >/dev/null
		cd /root; kbnode bundle create --image %[2]s/made:1 --agent-binary %[3]s
		docker rmi %[2]s/made:1 >/dev/null`, change, "registry.example", agent))
}

// TestBundle makes a machine without registry and release archive a node, from one file, and changes its agent and image.
func TestBundle(t *testing.T) {
	t.Parallel()
	m := forked(t)
	m.Sh(`mv "$(command -v buildkite-agent)" /root/agent; ! command -v buildkite-agent`)
	newBundle(m, "/root/agent", "true")
	image := func() string {
		return strings.TrimSpace(m.Try("docker image inspect -f '{{.Id}}' " + bundledImage).Stdout)
	}
	job := func(slot int) vm.Result {
		return runStep(m, slot, step(slot, bundledImage, "echo with $(wc -c </layer) bytes", ""))
	}

	t.Run("cut off, and for support", func(t *testing.T) {
		m.Sh("head -c 30000000 /root/kbnode-bundle.tar >/root/cut.tar; kbnode doctor --fast --bundle /root/support.tgz || true")
		for file, says := range map[string]string{"cut.tar": "it ends too early; copy it again", "support.tgz": "for support"} {
			r := m.Try(installCommand + " --bundle /root/" + file)
			if r.Code != 2 || !strings.Contains(r.Stderr, says) {
				t.Errorf("%s: exit %d: %s%s", file, r.Code, r.Stdout, r.Stderr)
			}
		}
		m.Sh("! test -e /etc/kbnode/config.yaml; ! docker image inspect " + bundledImage + " 2>/dev/null")
	})

	t.Run("killed, and to its end", func(t *testing.T) {
		for range 3 {
			p := m.Start("sh", "-c", withBundle)
			time.Sleep(time.Second + time.Duration(rand.IntN(20000))*time.Millisecond)
			p.Signal(9)
			p.Wait()
		}
		r := m.Start("sh", "-c", withBundle).WaitFor(2 * vm.Patience)
		if r.Code != 0 || !strings.Contains(r.Stdout, bundledImage+" is now sha256:") {
			t.Fatalf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		m.Sh("bkstub wait-agents --count 8 --timeout 5m; test -x /usr/local/libexec/kbnode/dist/buildkite-agent")
		must.Equal(t, "1", m.Sh("docker images -q kbnode.invalid/image | wc -l")) // the current one
		if r := job(2); r.Code != 0 || !strings.Contains(r.Stdout, "with 20000000 bytes") {
			t.Errorf("a job: exit %d: %s", r.Code, r.Stdout)
		}
		if out := m.Sh(withBundle); !strings.Contains(out, "Nothing to change") {
			t.Errorf("again: %s", out)
		}
	})

	before := image()
	t.Run("an image that fails", func(t *testing.T) {
		newBundle(m, "/root/agent", `rm /usr/bin/python3*; printf "#!/bin/sh\nexit 3\n" >/usr/bin/python3; chmod 755 /usr/bin/python3`)
		r := m.Try("kbnode image update --bundle /root/kbnode-bundle.tar")
		if r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, "Refused: "+bundledImage) {
			t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		must.Equal(t, before, image())
	})

	t.Run("a full disk, and beside a job", func(t *testing.T) {
		newBundle(m, "/root/agent", "true")
		m.Sh("fallocate -l $(( ($(stat -f -c %f /) - 10000) * $(stat -f -c %S /) )) /fill")
		if r := m.Try("kbnode image update --bundle /root/kbnode-bundle.tar"); r.Code != 1 || !strings.Contains(r.Stderr, "the engine's disk is full") {
			t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		m.Sh("rm /fill")
		wake := asleep(t, m, 5)
		if out := m.Sh(withBundle); !strings.Contains(out, "The image comes later: ") {
			t.Errorf("beside a job: %s", out)
		}
		must.Equal(t, before, image())
		wake()
		m.Sh("kbnode image update --bundle /root/kbnode-bundle.tar")
		if image() == before {
			t.Error("jobs get the image that they had")
		}
		m.Sh("kbnode image rollback --reason slow")
		must.Equal(t, before, image())
	})

	t.Run("another agent", func(t *testing.T) {
		m.Sh(strings.Replace(fakeRelease, `"$(command -v buildkite-agent)"`, "/root/agent", 1))
		newBundle(m, "/root/agent9", "true")
		if out := m.Sh("kbnode upgrade --bundle /root/kbnode-bundle.tar --wait"); !strings.Contains(out, "All slots run buildkite-agent 3.138.9.") {
			t.Errorf("it says %s", out)
		}
		must.Equal(t, "8", m.Sh(fmt.Sprintf(runs, newBinary)))
	})
}
