//go:build vm

package vm_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// packageState is machineState and what a package could leave, without dpkg's own books
// of what was there before.
const packageState = `{ ` + machineState + `
	find /usr -name '*kbnode*'
	findmnt -rno TARGET,SOURCE | grep -E 'kbnode|buildkite|gpu-[0-9]' || true
	dpkg-query -W -f '${binary:Package} ${db:Status-Abbrev}\n'
	} | grep -Ev '^/var/lib/(apt(/[^ ]*)?|dpkg/(status|available|diversions|statoverride)(-old)?|dpkg/lock.*|dpkg/triggers/.*|dpkg/updates.*) '`

// jobsProgram is the program that runs the job of slot 5.
const jobsProgram = `readlink /proc/$(systemctl show -P MainPID 'kbnode-job-gpu5@*.service')/exe`

const (
	aptInstall = "DEBIAN_FRONTEND=noninteractive apt-get install -y /root/%s.deb"
	isPackage  = `test "$(dpkg-query -W -f '${db:Status-Status}' kbnode)" = %s`
)

// packaged is a machine with the .debs of make debs in /root, and no kbnode.
func packaged(t *testing.T, debian string) *vm.Machine {
	t.Helper()
	texts := map[string]string{}
	for _, name := range []string{"old.deb", "new.deb"} {
		text, err := os.ReadFile(filepath.Join(os.Getenv("KBNODE_DEBS"), name))
		if err != nil {
			t.Fatalf("%v; type make test-scenarios RUN=TestPackage, which makes it", err)
		}
		texts[name] = string(text)
	}
	m := vm.ForkOn(t, debian)
	m.Sh("rm /usr/local/bin/kbnode; mkdir -p /var/cache/apt/archives/partial /var/lib/apt/lists/partial")
	m.Put("/root/token", 0o600, tokenLine+"\n")
	for name, text := range texts {
		m.Put("/root/"+name, 0o644, text)
	}
	return m
}

// TestPackage lives through what a machine sees of the .deb: installed, upgraded beside a
// job, also badly, removed, purged, and bringing up a node at the first boot.
func TestPackage(t *testing.T) {
	t.Parallel()
	for _, debian := range []string{vm.Trixie, vm.Bookworm} {
		t.Run(debian, func(t *testing.T) {
			t.Parallel()
			m := packaged(t, debian)
			before := m.Sh(packageState)
			t.Run("install", func(t *testing.T) {
				m.Sh(fmt.Sprintf(aptInstall, "old"))
				if got := m.Sh("kbnode version; systemctl is-enabled kbnode-install || true; systemctl list-units --plain --no-legend 'kbnode*' 'buildkite*'"); !strings.Contains(got, "scenario.1") || !strings.HasSuffix(got, "\ndisabled") {
					t.Errorf("the package alone gives %s", got)
				}
				m.Sh(installCommand + "; bkstub wait-agents --count 8 --timeout 5m")
				allIdle(t, m, 5)
			})
			t.Run("upgrade beside a job", func(t *testing.T) { upgradePackage(t, m) })
			t.Run("removal", func(t *testing.T) { removePackage(t, m, before) })
			t.Run("first boot", func(t *testing.T) { firstBoot(t, m, debian, before) })
		})
	}
}

// upgradePackage spoils the upgrade twice before it does it.
func upgradePackage(t *testing.T, m *vm.Machine) {
	job := hold(m, "b200", 5, "/dev/nvidia5", ", gpus: all")

	// A full disk: the probe's directory is one, and has the old one in it.
	m.Sh(`mkdir /run/full; mount -t tmpfs -o size=$(($(du -sk /usr/libexec/kbnode | cut -f1) + 64))k full /run/full
		cp -a /usr/libexec/kbnode/. /run/full; mount --bind /run/full /usr/libexec/kbnode`)
	r := m.Try("dpkg -i /root/new.deb")
	m.Sh("umount /usr/libexec/kbnode; umount /run/full; rmdir /run/full; kbnode version | grep scenario.1")
	if r.Code == 0 || !strings.Contains(r.Stderr, "No space left on device") {
		t.Errorf("on a full disk: exit %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, after := range []string{"0", "1", "3"} {
		out := m.Sh(fmt.Sprintf(`dpkg -i /root/new.deb >/dev/null 2>&1 & p=$!
			while kill -0 $p && ! test -e /usr/bin/kbnode.dpkg-new; do sleep 0.1; done; sleep %s; kill -9 $p || true; wait $p || true
			dpkg-query -W -f '${db:Status-Status}\n' kbnode; dpkg --configure -a || true; kbnode version`, after))
		t.Logf("killed %s s after dpkg began to unpack: %s", after, out)
	}
	// dpkg wants a package that it may have half unpacked installed again, which apt does not do by itself.
	m.Sh("dpkg -i /root/new.deb; " + fmt.Sprintf(isPackage, "installed") + "; kbnode version | grep scenario.2")

	m.Wait("the daemon", "readlink /proc/$(systemctl show -P MainPID kbnode)/exe | grep -qx /usr/bin/kbnode")

	if r := m.Try("DEBIAN_FRONTEND=noninteractive apt-get remove -y kbnode"); r.Code == 0 || !strings.Contains(r.Stdout+r.Stderr, "Type sudo kbnode uninstall first") {
		t.Errorf("the removal from a node: exit %d, %s%s", r.Code, r.Stdout, r.Stderr)
	}
	m.Sh(fmt.Sprintf(isPackage, "installed") + "; test -x /usr/bin/kbnode; systemctl is-active kbnode")
	if got := m.Sh(jobsProgram); !strings.HasSuffix(got, " (deleted)") {
		t.Errorf("the job that runs has changed to %s", got)
	}
	job.end(t, false)
	allIdle(t, m, 5)
	next := hold(m, "b200", 5, "/dev/nvidia5", ", gpus: all")
	must.Equal(t, "/usr/bin/kbnode", m.Sh(jobsProgram))
	next.end(t, false)
	m.Sh("bkstub submit --queue b200 --wait")
}

func removePackage(t *testing.T, m *vm.Machine, before string) {
	if out := m.Sh("kbnode uninstall"); !strings.Contains(out, "The package kbnode stays; remove it with apt or dnf.") {
		t.Errorf("uninstall says %s", out)
	}
	m.Sh("DEBIAN_FRONTEND=noninteractive apt-get remove -y kbnode; test ! -e /usr/bin/kbnode")
	m.Sh(fmt.Sprintf(aptInstall, "new") + "; kbnode version; mkdir -p /etc/kbnode; echo 'queue: b200' >/etc/kbnode/config.yaml")
	m.Sh("DEBIAN_FRONTEND=noninteractive apt-get purge -y kbnode")
	must.Equal(t, before, m.Sh(packageState))
}

// sinceBoot leaves out what a boot makes, but for kbnode's.
func sinceBoot(state string) []string {
	return slices.DeleteFunc(strings.Split(state, "\n"), func(line string) bool {
		return strings.HasPrefix(line, "/run/") && !strings.Contains(line, "kbnode") && !strings.Contains(line, "buildkite")
	})
}

// firstBoot is a machine whose image has package, configuration and token in it, and the
// unit enabled. On Debian 12 the token comes late, and so does the node.
func firstBoot(t *testing.T, m *vm.Machine, debian, before string) {
	const token = "mkdir -p /etc/buildkite-agent; install -m 600 /root/token /etc/buildkite-agent/token"
	m.Sh(fmt.Sprintf(aptInstall, "new") + "; systemctl enable kbnode-install")
	m.Put("/etc/kbnode/config.yaml", 0o644, "queue: b200\nagent: {endpoint: http://127.0.0.1:8899/v3}\n")
	if debian == vm.Trixie {
		m.Sh(token)
	}
	m.Reboot()
	if debian != vm.Trixie {
		m.Wait("the refusal", "journalctl -b -u kbnode-install | grep -q 'no agent token is given'")
		m.Sh("test ! -e /etc/systemd/system/kbnode.service; " + token)
	}
	m.Wait("the agents", "bkstub wait-agents --count 8 --timeout 10s")
	allIdle(t, m, 5)
	// What it wrote is what the next boot finds.
	const wrote = "/etc/systemd/system /etc/kbnode /etc/buildkite-agent /usr/local/libexec/kbnode"
	m.Sh("cd /; mkdir /root/wrote; cp -a --parents " + wrote + " /root/wrote")
	m.Reboot()
	m.Wait("the agents", "bkstub wait-agents --count 8 --timeout 10s")
	if got := m.Sh("systemctl show -P ConditionResult -P ExecMainStartTimestampMonotonic kbnode-install"); got != "no\n0" && got != "0\nno" {
		t.Errorf("the unit ran on a node: %q", got)
	}
	if r := m.Try("for d in " + wrote + "; do diff -ru --no-dereference /root/wrote$d $d; done"); r.Stdout != "" {
		t.Errorf("the second boot wrote: %s", r.Stdout)
	}
	m.Sh("rm -r /root/wrote")
	m.Sh("kbnode uninstall")
	must.Equal(t, "disabled\n", m.Try("systemctl is-enabled kbnode-install").Stdout)
	m.Sh("DEBIAN_FRONTEND=noninteractive apt-get purge -y kbnode; rm /etc/buildkite-agent/token; rmdir /etc/buildkite-agent")
	must.Equal(t, sinceBoot(before), sinceBoot(m.Sh(packageState)))
}
