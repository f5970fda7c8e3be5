//go:build vm

package vm_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// evalImage is what jobs call the image. The registry has a second address, by
// which images get into it without that name moving on the node.
const (
	evalImage   = "127.0.0.1:5000/eval:latest"
	makingImage = "localhost:5000/eval:latest"
)

// serveImages starts the stand-in for a registry on the node.
func serveImages(t *testing.T, m *vm.Machine) {
	t.Helper()
	binary := filepath.Join(t.TempDir(), "registry")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "../registry")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the registry: %v\n%s", err, out)
	}
	m.Put("/srv/registry", 0o755, must.Read(t, binary))
	m.Sh("systemd-run -q --unit registry /srv/registry")
	m.Wait("the registry", "curl -sf http://127.0.0.1:5000/v2/")
}

// newImage gives the registry another image and returns its digest: change is
// what a shell does in it.
func newImage(m *vm.Machine, change string) string {
	return m.Sh(fmt.Sprintf(`docker run --name making --network none kernelbot-test:latest sh -c 'head -c 20000000 /dev/urandom >/layer; %s' >/dev/null
		docker commit making %s >/dev/null; docker rm making >/dev/null
		docker push -q %[2]s >/dev/null
		docker image inspect -f '{{index .RepoDigests 0}}' %[2]s | cut -d@ -f2
		docker rmi %[2]s >/dev/null`, change, makingImage))
}

// standsFor fails the test unless jobs get the image of this digest.
func standsFor(t *testing.T, m *vm.Machine, digest string) {
	t.Helper()
	if got := m.Sh("docker image inspect -f '{{.RepoDigests}}' " + evalImage); !strings.Contains(got, digest) {
		t.Errorf("%s stands for %s, want %s; %s", evalImage, got, digest, m.Sh("kbnode image list; kbnode events --since 1h | tail -n 20"))
	}
}

// TestImage updates the image of a node's jobs, well and badly.
func TestImage(t *testing.T) {
	t.Parallel()
	m := installed(t)
	serveImages(t, m)
	m.Sh("printf 'image:\n  name: " + evalImage + "\n' >>/etc/kbnode/config.yaml; systemctl reload kbnode")
	job := func(slot int, command string) vm.Result { return runStep(m, slot, step(slot, evalImage, command, "")) }

	now := newImage(m, "true")
	t.Run("the first", func(t *testing.T) {
		if r := m.Try("kbnode image update"); r.Code != 0 {
			t.Fatalf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		standsFor(t, m, now)
		if r := job(2, "echo with $(wc -c </layer) bytes"); r.Code != 0 || !strings.Contains(r.Stdout, "with 20000000 bytes") {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
		if r := m.Try("kbnode image update --auto"); r.Code != 0 || r.Stdout+r.Stderr != "" {
			t.Errorf("with nothing to do: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	})

	t.Run("a canary that fails", func(t *testing.T) {
		newImage(m, `rm /usr/bin/python3*; printf "#!/bin/sh\nexit 3\n" >/usr/bin/python3; chmod 755 /usr/bin/python3`)
		if r := m.Try("kbnode image update --auto"); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, "Refused: "+evalImage) {
			t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		standsFor(t, m, now)
		if r := m.Try("kbnode image update --auto"); r.Code != 0 {
			t.Errorf("the next night: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		if got := m.Sh("kbnode events"); !strings.Contains(got, "was refused for "+evalImage) {
			t.Errorf("events: %s", got)
		}
	})

	t.Run("cut off, and killed", func(t *testing.T) {
		next := newImage(m, "true")
		// Three times a layer ends after 3 MB of its 20, and each 64 KiB take 20 ms.
		m.Sh(`curl -sf -d '{"cuts":3,"after":3000000,"pause":20000000}' http://127.0.0.1:5000/faults`)
		for range 4 {
			p := m.Start("kbnode", "image", "update", "--auto")
			time.Sleep(time.Second + time.Duration(rand.IntN(12000))*time.Millisecond)
			p.Signal(9)
			p.Wait()
			if r := job(3, "echo still here"); r.Code != 0 {
				t.Errorf("a job between: exit %d: %s", r.Code, r.Stdout)
			}
		}
		if r := m.Try("kbnode image update --auto"); r.Code != 0 {
			t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		standsFor(t, m, next)
		m.Wait("the canaries that were cut off", "test -z \"$(docker ps -aq)\"")
		must.Equal(t, "2", m.Sh("docker images -q kbnode.invalid/image | wc -l"))
		now = next
	})

	t.Run("from cron", func(t *testing.T) {
		next := newImage(m, "true")
		m.Sh(installCommand + " --auto-update '* * * * *'; test -s /etc/cron.d/kbnode")
		m.Wait("cron", "docker image inspect -f '{{.RepoDigests}}' "+evalImage+" | grep -q "+next)
		m.Sh(installCommand + " --auto-update '0 3 1 1 *'")
		newImage(m, "true") // that a job's pull does not get
		if r := runStep(m, 6, step(6, evalImage, "echo as it was", ", always-pull: true")); r.Code != 0 || !strings.Contains(r.Stdout, "as it was") || !strings.Contains(r.Stdout, "kbnode keeps "+evalImage+" up to date") {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
		standsFor(t, m, next)
		m.Sh(installCommand + " --auto-update off; ! test -e /etc/cron.d/kbnode")
		now = next
	})

	t.Run("power failure", func(t *testing.T) {
		newImage(m, "true")
		m.Sh(`curl -sf -d '{"pause":100000000}' http://127.0.0.1:5000/faults`)
		m.Start("kbnode", "image", "update")
		m.Wait("the pull", "kbnode image list | grep -q candidate")
		m.Sh("sync")
		m.Reset()
		m.Sh("bkstub wait-agents --count 8 --timeout 5m")
		standsFor(t, m, now)
		if r := m.Try("kbnode image update --auto"); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, "127.0.0.1:5000") {
			t.Errorf("without a registry: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		if r := job(1, "echo goes on"); r.Code != 0 {
			t.Errorf("exit %d: %s", r.Code, r.Stdout)
		}
		m.Sh("systemd-run -q --unit registry /srv/registry")
		m.Wait("the registry", "curl -sf http://127.0.0.1:5000/v2/")
		next := newImage(m, "true")
		m.Sh("kbnode image update")
		standsFor(t, m, next)
	})
}
