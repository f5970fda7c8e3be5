//go:build vm

package vm_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// mirror replaces what a cloud's server fetches from: files, and a secret store that
// unwraps a ticket once.
const mirror = `import http.server, json, os
os.chdir("/srv/mirror")
class Mirror(http.server.SimpleHTTPRequestHandler):
    tickets = {"hvs.once"}
    def do_POST(self):
        ticket = self.headers.get("X-Vault-Token")
        if self.path != "/v1/sys/wrapping/unwrap" or ticket not in self.tickets:
            return self.send_error(400, "wrapping token is not valid or does not exist")
        self.tickets.remove(ticket)
        self.send_response(200)
        self.end_headers()
        token = open("/root/token-of-the-store").read().strip()
        self.wfile.write(json.dumps({"data": {"data": {"token": token}}}).encode())
http.server.ThreadingHTTPServer(("127.0.0.1", 8200), Mirror).serve_forever()
`

// artifact is what is installed at the first boot: the package where there is one.
func artifact(t *testing.T) (name string, content []byte) {
	t.Helper()
	name, file := "kbnode_0.0.1_amd64.deb", filepath.Join(os.Getenv("KBNODE_DEBS"), "new.deb")
	if _, err := os.Stat(file); err != nil {
		name, file = "kbnode", os.Getenv("KBNODE_BIN")
	}
	content, err := os.ReadFile(file)
	must.Do(t, err)
	return name, content
}

// TestCloudInit boots a machine with the user-data of packaging/cloud-init.
func TestCloudInit(t *testing.T) {
	t.Parallel()
	text := must.Read(t, "../../packaging/cloud-init/user-data.yaml")
	name, content := artifact(t)
	t.Logf("installs %s", name)
	// What is the user's own in it.
	data := text
	for old, own := range map[string]string{
		`queue: b200\n`:   "queue: b200\n      agent: {endpoint: \"http://127.0.0.1:8899/v3\"}\n",
		`kbnode=https.*`:  "kbnode=http://127.0.0.1:8200/" + name,
		`sha256=0{64}`:    fmt.Sprintf("sha256=%x", sha256.Sum256(content)),
		`store=https.*`:   "store=http://127.0.0.1:8200",
		`ticket=hvs[.].*`: "ticket=hvs.once",
	} {
		pattern := regexp.MustCompile(old)
		if n := len(pattern.FindAllString(data, -1)); n != 1 {
			t.Fatalf("user-data.yaml has %q %d times", old, n)
		}
		data = pattern.ReplaceAllLiteralString(data, own)
	}

	m := vm.Fork(t)
	m.Sh("rm /usr/local/bin/kbnode")
	m.InstallPackages("cloud-init")
	must.Do(t, m.VM.Put(t.Context(), "/srv/mirror/"+name, 0o644, strings.NewReader(string(content))))
	m.Put("/root/token-of-the-store", 0o600, bktest.DefaultAgentToken+"\n")
	m.Put("/root/mirror.py", 0o600, mirror)
	m.Put("/etc/systemd/system/mirror.service", 0o644, "[Service]\nExecStart=/usr/bin/python3 /root/mirror.py\nRestart=always\n[Install]\nWantedBy=multi-user.target\n")
	m.Put("/var/lib/cloud/seed/nocloud/meta-data", 0o644, "instance-id: first\nlocal-hostname: b200-node\n")
	m.Put("/var/lib/cloud/seed/nocloud/user-data", 0o600, data)
	// Each module takes seconds, emulated: those that the file asks for.
	m.Put("/etc/cloud/cloud.cfg.d/99-rig.cfg", 0o644, "datasource_list: [NoCloud]\nnetwork: {config: disabled}\nmanage_etc_hosts: false\n"+
		"cloud_init_modules: [write_files]\ncloud_config_modules: [runcmd]\ncloud_final_modules: [scripts_user]\n")
	t.Run("schema", func(t *testing.T) {
		m.Put("/root/user-data.yaml", 0o600, text)
		if r := m.Try("cloud-init schema --config-file /root/user-data.yaml"); r.Code != 0 || !strings.Contains(r.Stdout, "Valid schema") {
			t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
	m.Sh("systemctl enable mirror.service; sync")
	m.Reboot()

	t.Run("first boot", func(t *testing.T) {
		r := m.Try("cloud-init status --wait --long; tail -n 60 /var/log/cloud-init-output.log")
		t.Log(r.Stdout + r.Stderr)
		must.Contain(t, r.Stdout, "status: done")
		m.Sh("grep -q 'This machine' /var/log/cloud-init-output.log || true")
	})
	t.Run("a node", func(t *testing.T) {
		m.Sh("bkstub wait-agents --queue b200 --count 8 --timeout 3m")
		allIdle(t, m)
		idle(t, m, 3)
		if r := m.Try("kbnode install"); r.Code != 0 || !strings.Contains(r.Stdout, "Nothing to change") {
			t.Errorf("exit code %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	})
	t.Run("token", func(t *testing.T) {
		must.Equal(t, "600 root\n700 root", m.Sh("stat -c '%a %U' /etc/buildkite-agent/token /usr/local/sbin/kbnode-first-boot"))
		m.Put("/root/pattern", 0o600, bktest.DefaultAgentToken+"\n")
		if got := m.Sh("grep -rlFf /root/pattern --exclude=image /etc /run /var/lib/cloud /var/lib/kbnode /var/log /tmp /var/tmp 2>/dev/null || true; journalctl -b -o cat | grep -cFf /root/pattern || true"); !strings.HasPrefix(got, "/etc/buildkite-agent/token\n") || strings.Contains(got, "cloud") || !strings.HasSuffix(got, "\n0") {
			t.Errorf("the token stands in: %s", got)
		}
		// Others may read the ticket, and it is spent.
		if r := m.Try("curl -fsS -X POST -H 'X-Vault-Token: hvs.once' http://127.0.0.1:8200/v1/sys/wrapping/unwrap"); r.Code == 0 {
			t.Errorf("the ticket is good twice: %s", r.Stdout)
		}
		must.Equal(t, "", m.Sh("find /var/lib/cloud -perm /004 -type f -exec grep -l hvs.once {} + || true"))
	})
	t.Run("second boot", func(t *testing.T) {
		m.Reboot()
		m.Sh("bkstub wait-agents --queue b200 --count 8 --timeout 5m")
		allIdle(t, m)
	})
}
