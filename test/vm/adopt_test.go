//go:build vm

package vm_test

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// oldNode sets up what the scripts before kbnode left: agents of one user that
// is in the docker group, in system.slice, with the token in their
// configuration, a hook and a cron job beside theirs; and, for the first, a
// slice without a parent.
const oldNode = `
useradd --system --create-home --home-dir /var/lib/buildkite-agent --shell /bin/bash buildkite-agent
usermod -aG docker buildkite-agent
mkdir -p /etc/buildkite-agent/hooks /var/lib/buildkite-agent/builds
cat >/etc/buildkite-agent/hooks/environment <<'X'
#!/bin/bash
export NVIDIA_VISIBLE_DEVICES=$BUILDKITE_AGENT_META_DATA_GPU_INDEX
X
printf '#!/bin/bash\necho the old hook ran\n' >/etc/buildkite-agent/hooks/pre-command
cp /etc/buildkite-agent/hooks/pre-command /etc/buildkite-agent/hooks/command.sample
chmod 755 /etc/buildkite-agent/hooks/*
echo '0 3 * * * root /opt/update-image.sh --auto' >/etc/cron.d/kernelbot-update
printf '[Slice]\nMemoryMax=400M\n' >/etc/systemd/system/buildkite-gpu0.slice
for k in 0 1 2 3 4 5 6 7; do
	cat >/etc/buildkite-agent/buildkite-agent-gpu$k.cfg <<X
token="bktest-agent-token"
name="old-gpu$k"
tags="queue=b200,gpu-index=$k"
endpoint="http://127.0.0.1:8899/v3"
build-path="/var/lib/buildkite-agent/builds/gpu$k"
plugins-path="/var/lib/buildkite-agent/plugins"
hooks-path="/etc/buildkite-agent/hooks"
X
	cat >/etc/systemd/system/buildkite-agent-gpu$k.service <<X
[Unit]
Description=Buildkite Agent GPU $k
[Service]
User=buildkite-agent
ExecStart=/usr/bin/buildkite-agent start --config /etc/buildkite-agent/buildkite-agent-gpu$k.cfg
Restart=on-failure
TimeoutStopSec=60
[Install]
WantedBy=multi-user.target
X
done
chown -R buildkite-agent: /etc/buildkite-agent /var/lib/buildkite-agent
systemctl daemon-reload
systemctl enable --now buildkite-agent-gpu{0,1,2,3,4,5,6,7} 2>/dev/null
bkstub wait-agents --count 8 --timeout 5m`

// oldFiles is what an adoption touches, as it was.
const oldFiles = `cd /; { find etc/buildkite-agent etc/systemd/system/*buildkite* etc/cron.d/kernelbot-update var/lib/buildkite-agent -maxdepth 2 ! -path '*/builds/*' ! -path '*/plugins*' ! -path '*/.*' ! -name '.*'
	find etc/systemd/system -type l -name '*buildkite*'; } | sort -u | while read -r f; do
	stat -c '%N %a %U:%G' "$f"; if test -f "$f"; then sha256sum <"$f"; fi; done; systemctl is-enabled buildkite-agent-gpu{0..7}; id -nG buildkite-agent`

// oldJob runs on an agent of the old setup while its node is adopted: in its
// home, in a container, and at its end it sends an artifact.
const oldJob = `steps:
  - command: |
      mkdir -p ~/.cache
      for i in $$(seq 300); do docker run --rm busybox:test sleep 1 || exit 7; touch ~/new-$$i ~/.cache/began && rm ~/new-$$i || exit 8; test -e /tmp/done && break; done
      echo slept well | tee said.txt
    artifact_paths: said.txt
    agents: {queue: b200, gpu-index: "2"}
`

func TestInstallAdoptsAnOldNode(t *testing.T) {
	t.Parallel()
	m := forked(t)
	m.Sh(oldNode)
	before := m.Sh(oldFiles)
	m.Put("/root/old.yml", 0o600, oldJob)
	job := m.Start("bash", "-c", "bkstub submit --queue b200 --steps /root/old.yml --wait")
	m.Wait("the job's first container", "test -e /var/lib/buildkite-agent/.cache/began")

	if r := m.Try(installCommand); r.Code != 2 || !strings.Contains(r.Stderr, "--adopt") || !strings.Contains(r.Stderr, "hooks/pre-command") {
		t.Errorf("install without --adopt: exit %d, %s", r.Code, r.Stderr)
	}
	must.Equal(t, before, m.Sh(oldFiles))
	// The token of the old setup is found by itself.
	out := m.Sh(strings.Replace(installCommand, "--token-file /root/token", "--adopt --yes", 1))
	if !strings.Contains(out, "later: ") || !strings.Contains(out, "Replaced and removed files are in /var/backups/kbnode.") {
		t.Errorf("adopting with a running job says %s", out)
	}
	must.Equal(t, "buildkite-agent", m.Sh("stat -c %U /var/lib/buildkite-agent"))
	m.Sh("touch /tmp/done")
	if r := job.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "slept well") || !strings.Contains(r.Stdout, "the old hook ran") {
		t.Fatalf("the job ended with %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	m.Wait("all slots as planned", "kbnode status")
	m.Sh("bkstub wait-agents --count 8 --timeout 5m")
	if got := m.Sh("ps -C buildkite-agent -o user:20= | sort -u | xargs"); got != "kbnode-gpu0 kbnode-gpu1 kbnode-gpu2 kbnode-gpu3 kbnode-gpu4 kbnode-gpu5 kbnode-gpu6 kbnode-gpu7" {
		t.Errorf("agents run as %s", got)
	}
	if got := m.Try("ps -u buildkite-agent -o pid=,args=").Stdout; strings.TrimSpace(got) != "" {
		t.Errorf("of the old user there runs %s", got)
	}
	if got := m.Sh("ls /etc/buildkite-agent/*.cfg /etc/buildkite-agent/hooks /etc/cron.d/kernelbot-update 2>/dev/null || true"); got != "/etc/buildkite-agent/hooks:\nagent-startup\ncommand.sample" {
		t.Errorf("after adoption there are %s", got)
	}
	m.Put("/tmp/pattern", 0o644, "bktest-agent-token\n")
	if got := m.Sh("grep -rlsf /tmp/pattern /etc; grep -rlsf /tmp/pattern /var/backups/kbnode | wc -l; stat -c '%a %U' /var/backups/kbnode"); got != "/etc/buildkite-agent/token\n8\n700 root" {
		t.Errorf("root reads the token in %s", got)
	}
	if r := m.Try("runuser -u kbnode-gpu1 -- grep -rlsf /tmp/pattern /etc /run /var/lib/kbnode /var/backups /var/lib/buildkite-agent; runuser -u kbnode-gpu1 -- grep -lsf /tmp/pattern /proc/[0-9]*/environ /proc/[0-9]*/cmdline"); strings.TrimSpace(r.Stdout) != "" {
		t.Errorf("a slot's user reads the token in %s", r.Stdout)
	}
	if r := m.Try("bkstub submit --queue b200 --wait"); r.Code != 0 || strings.Contains(r.Stdout, "the old hook ran") {
		t.Errorf("a job after adoption: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if got := m.Sh("kbnode reconcile; kbnode plan --detailed-exit-code >/dev/null && echo nothing"); !strings.HasSuffix(got, "nothing") {
		t.Errorf("a second run says %s", got)
	}

	if got := m.Sh("kbnode uninstall"); !strings.Contains(got, "Files of an earlier setup are in /var/backups/kbnode.") {
		t.Errorf("uninstall says %s", got)
	}
	// By hand, the old setup is what it was.
	m.Sh("cp -a /var/backups/kbnode/etc /; chown -R buildkite-agent: /etc/buildkite-agent /var/lib/buildkite-agent; systemctl daemon-reload; systemctl enable --now buildkite-agent-gpu{0..7}; bkstub wait-agents --count 8 --timeout 5m")
}
