package node

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

// agentProgram is a program that answers like a buildkite-agent.
func agentProgram(version string, keys []string) string {
	return "#!/bin/sh\nif [ \"$1\" = --version ]; then echo buildkite-agent version " + version + "+build.1; else cat <<END\n   --" +
		strings.Join(keys, " value\n   --") + " value\nEND\nfi\n"
}

// serveAgent serves a mirror with one release, which contains a program.
func serveAgent(t *testing.T, program string) config.Agent {
	t.Helper()
	var b bytes.Buffer
	gz := gzip.NewWriter(&b)
	w := tar.NewWriter(gz)
	must.Do(t, w.WriteHeader(&tar.Header{Name: "buildkite-agent", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(program))}))
	if _, err := io.WriteString(w, program); err != nil {
		t.Fatal(err)
	}
	must.Do(t, errors.Join(w.Close(), gz.Close()))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/3.100.0.tgz" {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(b.Bytes())
	}))
	t.Cleanup(server.Close)
	sum := sha256.Sum256(b.Bytes())
	return config.Agent{DownloadURL: server.URL + "/{version}.tgz", DownloadSHA256: hex.EncodeToString(sum[:])}
}

// TestUpgradeFetches takes a release that can close a slot, and no other.
func TestUpgradeFetches(t *testing.T) {
	t.Parallel()
	keys := machinetest.AgentKeys(machinetest.AgentVersion)
	for _, tt := range []struct {
		name, program, says string
		sum                 string
	}{
		{name: "good", program: agentProgram("3.100.0", keys)},
		{name: "a key is missing", program: agentProgram("3.100.0", []string{"name", "tags"}), says: "does not support endpoint"},
		{name: "another version", program: agentProgram("3.99.0", keys), says: "contains 3.99.0"},
		{name: "no agent", program: "#!/bin/sh\nexit 3\n", says: "is not a buildkite-agent for this machine"},
		{name: "wrong sum", program: agentProgram("3.100.0", keys), sum: strings.Repeat("0", 64), says: ", not 0000"},
	} {
		t.Run(tt.name, func(t *testing.T) { // not parallel: it executes what was just written
			n := &Node{Inventory: &inventory.Inventory{}, Config: config.Config{Agent: serveAgent(t, tt.program)}}
			if tt.sum != "" {
				n.Config.Agent.DownloadSHA256 = tt.sum
			}
			n.Root = t.TempDir()
			release, err := n.getAgent(t.Context(), "3.100.0", "")
			if tt.says != "" {
				must.Err(t, err, tt.says)
				if _, err := os.Stat(filepath.Join(n.Root, plan.AgentBinary("3.100.0"))); err == nil {
					t.Error("it is left")
				}
				return
			}
			if err != nil || release.Version != "3.100.0" || len(release.Keys) != len(keys) {
				t.Errorf("%+v, %v", release, err)
			}
			// A kept release is not fetched again, not even without a mirror.
			n.Agent, n.Config.Agent.DownloadURL = release, "http://127.0.0.1:1/"
			if again, err := n.getAgent(t.Context(), "3.100.0", ""); err != nil || again.Version != "3.100.0" {
				t.Errorf("again: %v, %v", again, err)
			}
			n.Agent = plan.AgentRelease{Version: "3.101.0"}
			if back, err := n.getAgent(t.Context(), "3.100.0", ""); err != nil || len(back.Keys) != len(keys) {
				t.Errorf("back to one that is kept: %v, %v", back, err)
			}
			must.Do(t, os.Remove(filepath.Join(n.Root, plan.AgentBinary("3.100.0"))))
			if _, err := n.getAgent(t.Context(), "3.100.0", ""); err == nil {
				t.Error("a release that is gone is not fetched")
			}
		})
	}
}

// TestInstallRefusedAgent checks that a binary that slots cannot run replaces neither the installed
// agent nor the release that kbnode upgrade chose.
func TestInstallRefusedAgent(t *testing.T) { // not parallel: it executes what was just written
	for _, tt := range []struct{ name, program, configured, says string }{
		{name: "another architecture", program: "\x7fELF", says: "is not a buildkite-agent for this machine"},
		{name: "a key is missing", program: agentProgram("3.101.0", []string{"name"}), says: "does not support tags"},
		{name: "slots would not run it", program: agentProgram("3.101.0", machinetest.AgentKeys(machinetest.AgentVersion)), configured: "/opt/agent", says: "slots run /opt/agent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			host := &reconcile.Host{Root: root}
			n := &Node{Root: root, Agent: plan.AgentRelease{Version: "3.100.0"}, Config: config.Config{Agent: config.Agent{Binary: tt.configured}}, Say: t.Logf}
			installed, chosen := must.Write(t, root, installer.AgentPath, "installed"), must.Write(t, root, plan.AgentsPath, "chosen")
			given := must.Write(t, t.TempDir(), "buildkite-agent", tt.program)
			must.Do(t, os.Chmod(given, 0o700))
			_, err := n.installAgent(t.Context(), host, given)
			must.Err(t, err, tt.says)
			must.Equal(t, "installed chosen", must.Read(t, installed)+" "+must.Read(t, chosen))
		})
	}
}

// TestInstallKeepsAnOldAgent checks that an agent that was there is kept, and what is said of it.
func TestInstallKeepsAnOldAgent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ installed, chosen, binary, want string }{
		{"3.76.2", "", "", "slots run buildkite-agent 3.76.2, supported by Buildkite until 2027-01-01; sudo kbnode upgrade --agent-version 3.138.3 changes it"},
		{"3.138.3", "3.116.0", "", "slots run buildkite-agent 3.116.0, supported by Buildkite until 2027-01-29; sudo kbnode upgrade --agent-version 3.138.3 changes it"},
		{"3.76.2", "3.138.3", "", ""},
		{"3.76.2", "", "/opt/agent", ""}, // the operator's; doctor says it
		{"3.137.0", "", "", ""},          // for long enough
		{"4.99.0", "", "", ""},
	} {
		var said []string
		n := &Node{Inventory: &inventory.Inventory{}, Agent: plan.AgentRelease{Version: tt.chosen}, Config: config.Config{Agent: config.Agent{Binary: tt.binary}}, Say: func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }}
		n.Inventory.Software.Agent = inventory.Agent{Path: "/usr/bin/buildkite-agent", Version: tt.installed}
		n.sayOldAgent(time.Date(2026, time.November, 29, 0, 0, 0, 0, time.UTC))
		must.Equal(t, tt.want, strings.Join(said, "\n"))
		said = nil
		fetched, err := n.installAgent(t.Context(), nil, "")
		must.Do(t, err)
		must.Equal(t, false, fetched)
		if tt.want != "" && len(said) != 1 {
			t.Errorf("%+v: %q", tt, said)
		}
	}
}

// TestUpgradeToTheInstalledOne checks that the installed version is not fetched.
func TestUpgradeToTheInstalledOne(t *testing.T) {
	t.Parallel()
	n := &Node{Root: t.TempDir(), Inventory: &inventory.Inventory{}, Agent: plan.AgentRelease{Version: "3.100.0"}}
	n.Inventory.Software.Agent = inventory.Agent{Path: "/usr/bin/buildkite-agent", Version: machinetest.AgentVersion, Keys: machinetest.AgentKeys(machinetest.AgentVersion)}
	if release, err := n.getAgent(t.Context(), machinetest.AgentVersion, ""); err != nil || release.Version != "" {
		t.Errorf("%v, %v", release, err)
	}
	n.Inventory.Software.Agent.Keys = []string{"name"}
	if _, err := n.getAgent(t.Context(), machinetest.AgentVersion, ""); err == nil {
		t.Error("an installed agent that closes nothing is taken")
	}
	n.Config.Agent.Binary = "/opt/agent"
	_, err := n.AgentTarget(t.Context(), "3.100.0", "")
	must.Err(t, err, "slots run /opt/agent")
}

// TestUpgradeAsksTheOtherEndpoint changes nothing if the endpoint of the new version does not answer.
func TestUpgradeAsksTheOtherEndpoint(t *testing.T) { // not parallel: it replaces the network
	network := http.DefaultTransport
	t.Cleanup(func() { http.DefaultTransport = network })
	var asked string
	http.DefaultTransport = roundTrip(func(r *http.Request) (*http.Response, error) {
		asked = r.URL.String()
		return nil, errors.New("no route to host")
	})
	n := &Node{Root: t.TempDir(), Inventory: &inventory.Inventory{}, Config: config.Config{Agent: config.Agent{Endpoint: config.DefaultEndpoint}}}
	n.Inventory.Software.Agent.Version = "3.76.2"
	_, err := n.ChangeAgent(t.Context(), &reconcile.Host{Root: n.Root}, "3.138.3", "")
	must.Err(t, err, "nothing was changed: buildkite-agent 3.138.3 connects to https://agent-edge.buildkite.com/v3, which does not answer: no route to host; "+
		"let the firewall or proxy pass it, or write agent.endpoint: https://agent.buildkite.com/v3 into /etc/kbnode/config.yaml")
	must.Equal(t, config.DefaultEndpoint, asked)
	// The same endpoint as before is not asked.
	asked, n.Inventory.Software.Agent.Version = "", "3.128.0"
	must.Do(t, n.askEndpoint(t.Context(), "3.138.3"))
	n.Config.Agent.Endpoint, n.Inventory.Software.Agent.Version = config.PollingEndpoint, "3.76.2"
	must.Do(t, n.askEndpoint(t.Context(), "3.138.3"))
	must.Equal(t, "", asked)
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
