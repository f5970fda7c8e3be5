//go:build vm

package vm_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// TestDisk fills the disk of slots in every way that a job has: the node's must
// not notice, and the slot goes on.
func TestDisk(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.Sh(`printf 'job:\n  disk: 256MiB\n' >>/etc/kbnode/config.yaml; kbnode reconcile`)
	m.Sh("bkstub wait-agents --count 8 --timeout 3m")
	m.Sh(`docker export "$(docker create busybox:test)" | docker import -c 'VOLUME /data' -c 'ENV PATH=/bin' - volumes:test; docker rm $(docker ps -aq)`)

	free := func() (mib int) {
		_, _ = fmt.Sscan(m.Sh("sync; df -m --output=avail / | tail -1"), &mib)
		return mib
	}
	before := free()
	// The log also has the command itself, with the sum not done.
	fill := func(file string) string {
		return "dd if=/dev/zero of=" + file + " bs=1M count=400 || echo $$((40 + 2)) full: " + file + "\n"
	}
	files := "mkdir /many; cd /many; i=0; while true >$$i; do i=$$((i + 1)); done; echo files: $$i"
	for name, row := range map[string]struct{ steps, want string }{
		"layer":     {step(0, "busybox:test", fill("/big")+"df -m /", ""), "42 full: /big"},
		"set aside": {step(1, "busybox:test", "fallocate -l 10G /big || echo $$((40 + 2)) full: /big", ""), "42 full: /big"},
		"files":     {step(2, "busybox:test", files, ""), "files: 1"},
		"/etc":      {step(3, "busybox:test", fill("/etc/hosts"), ""), "42 full: /etc/hosts"},
		"volume":    {step(4, "volumes:test", fill("/data/big"), ""), "42 full: /data/big"},
		"checkout":  {step(5, "busybox:test", fill("big"), ""), "42 full: big"},
	} {
		slot := int(regexp.MustCompile(`gpu-index: "(\d)"`).FindStringSubmatch(row.steps)[1][0] - '0')
		if out := runStep(m, slot, row.steps).Stdout; !strings.Contains(out, row.want) {
			t.Errorf("%s: no %q in\n%s", name, row.want, out)
		}
		if lost := before - free(); lost > 100 {
			t.Errorf("%s took %d MiB of the node's disk", name, lost)
		}
		idle(t, m, slot)
	}
	if got := m.Sh("docker volume ls -q; mount | grep -e ^/dev/loop.*overlay2/ -e mnt/containers/ || true"); got != "" {
		t.Errorf("left behind: %s", got)
	}
}
