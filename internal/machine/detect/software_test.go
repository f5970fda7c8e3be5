package detect

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestAgentVersion(t *testing.T) {
	t.Parallel()
	for output, want := range map[string]string{
		"buildkite-agent version 3.76.2+x..dirty\n":        "3.76.2",
		"buildkite-agent version 3.95.1+10220.aabbcc\n":    "3.95.1",
		"buildkite-agent version 4.0.0-beta.2+11000.abc\n": "4.0.0-beta.2",
		"buildkite-agent version 3.10.0, build 2856\n":     "3.10.0",
		"usage: something else":                            "",
		"":                                                 "",
	} {
		if got := agentVersion(output); got != want {
			t.Errorf("agentVersion(%q) = %q, want %q", output, got, want)
		}
	}
}

func TestAgentKeys(t *testing.T) {
	t.Parallel()
	help := `Usage:

    buildkite-agent start [options...]

Example:

    $ buildkite-agent start --token xxx

Options:

  --name value                 The name of the agent [$BUILDKITE_AGENT_NAME]
  --no-http2                   Disable HTTP2, see also --endpoint
  --queue value, -q value      The queue
  -d, --debug                  Enable debug mode
  --name value                 Twice
  --help, -h                   show help
  --version, -v                print the version
`
	want := []string{"debug", "name", "no-http2", "queue"}
	must.Equal(t, want, agentKeys(help))
}

// script writes a program for tests. Call it before t.Parallel: a program cannot be run
// while another test's fork still holds it open for writing.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "buildkite-agent")
	must.Program(t, path, "#!/bin/sh\n"+text)
	return path
}

func TestAskAgent(t *testing.T) {
	path := script(t, `case "$1" in
--version) echo "buildkite-agent version 3.76.2+1" ;;
start) echo "  --name value  The name"; env | grep -c BUILDKITE | sed 's/^/  --inherited-/' ;;
esac`)
	t.Parallel()
	agent, err := AskAgent(t.Context(), path)
	must.Do(t, err)
	must.Equal(t, inventory.Agent{Path: path, Version: "3.76.2", Keys: []string{"inherited-0", "name"}}, agent)
	// It is not started again until it changes.
	askedAgents.Store(programIdentity(path), inventory.Agent{Version: "4", Keys: []string{"name"}})
	for range 2 {
		if agent, err = AskAgent(t.Context(), path); err != nil || agent.Version != "4" || agent.Keys[0] != "name" {
			t.Errorf("%+v, %v", agent, err)
		}
		agent.Keys[0] = "changed" // must not change the cached copy
	}
	must.Do(t, os.Chmod(path, 0o700))
	if agent, err = AskAgent(t.Context(), path); err != nil || agent.Version != "3.76.2" {
		t.Errorf("after a change: %+v, %v", agent, err)
	}
}

func TestAskAgentFails(t *testing.T) {
	failing, other, hanging := script(t, "exit 3"), script(t, "echo hello"), script(t, "sleep 600 & wait")
	t.Parallel()
	t.Run("it ends with an error", func(t *testing.T) {
		t.Parallel()
		agent, err := AskAgent(t.Context(), failing)
		if err == nil || agent.Path != failing || agent.Version != "" {
			t.Errorf("got %+v, %v; want the path and an error", agent, err)
		}
	})
	t.Run("it is another program", func(t *testing.T) {
		t.Parallel()
		if agent, err := AskAgent(t.Context(), other); err == nil {
			t.Errorf("got %+v, want an error", agent)
		}
	})
	t.Run("it hangs", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := AskAgent(ctx, hanging)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the deadline", err)
		}
	})
	t.Run("it never ends printing", func(t *testing.T) {
		t.Parallel()
		var out limited
		for range 3 {
			if n, err := out.Write(make([]byte, maxAgentOutput/2+1)); err != nil || n != maxAgentOutput/2+1 {
				t.Fatalf("wrote %d, %v; the writer must not notice", n, err)
			}
		}
		must.Equal(t, maxAgentOutput, out.Len())
	})
}

func TestMajorVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{
		"257.9-1~deb13u1": "257", "v255": "255", "252": "252", "249.11-0ubuntu3.16": "249", "": "", "git": "",
	} {
		if got := majorVersion(version); got != want {
			t.Errorf("majorVersion(%q) = %q, want %q", version, got, want)
		}
	}
}

func TestCDIDevices(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"etc/cdi/amd.json":        `{"cdiVersion": "0.6.0", "kind": "amd.com/gpu", "devices": [{"name": "0", "containerEdits": {}}, {"name": "all"}]}`,
		"etc/cdi/broken.yaml":     "kind: [",
		"etc/cdi/README":          "kind: not.a/spec",
		"var/run/cdi/nvidia.yaml": "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n- name: \"0\"\n  containerEdits: {}\n- name: GPU-1\n",
	} {
		must.Write(t, dir, name, text)
	}
	must.Do(t, os.Mkdir(filepath.Join(dir, "etc/cdi/old.yaml"), 0o755))
	must.Do(t, os.Symlink("loop.yaml", filepath.Join(dir, "etc/cdi/loop.yaml")))
	in, err := openTree(dir)
	must.Do(t, err)
	got, err := cdiDevices(in, []string{"/etc/cdi", "/var/run/cdi", "/nowhere"})
	want := []string{"amd.com/gpu=0", "amd.com/gpu=all", "nvidia.com/gpu=0", "nvidia.com/gpu=GPU-1"}
	must.Equal(t, want, got)
	must.Err(t, err, "/etc/cdi/broken.yaml")
	must.Err(t, err, "/etc/cdi/loop.yaml: it is a loop of symbolic links")
	if strings.Contains(err.Error(), "old.yaml") || len(in.unread()) > 0 { // which would keep the devices as they were
		t.Errorf("%v, unread %v", err, in.unread())
	}
}

// TestCDIConflicts compares with the rules of CDI's own cache, tags.cncf.io/container-device-interface.
func TestCDIConflicts(t *testing.T) {
	t.Parallel()
	spec := func(names ...string) string {
		return "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices: [{name: " + strings.Join(names, "}, {name: ") + "}]\n"
	}
	for _, tt := range []struct {
		name  string
		files map[string]string
		want  []string // name=path
		says  string
	}{
		{"a later directory counts", map[string]string{"etc/cdi/nvidia.yaml": spec("GPU-a", "GPU-b"), "run/cdi/nvidia.yaml": spec("GPU-a")},
			[]string{"nvidia.com/gpu=GPU-a /run/cdi/nvidia.yaml", "nvidia.com/gpu=GPU-b /etc/cdi/nvidia.yaml"}, ""},
		{"two in one directory hide each other", map[string]string{"etc/cdi/a.yaml": spec("GPU-a", "GPU-b"), "etc/cdi/b.json": spec("GPU-a")},
			[]string{"nvidia.com/gpu=GPU-b /etc/cdi/a.yaml"}, "/etc/cdi/a.yaml and /etc/cdi/b.json both name nvidia.com/gpu=GPU-a"},
		{"also from a later directory", map[string]string{"etc/cdi/a.yaml": spec("GPU-a"), "etc/cdi/b.yaml": spec("GPU-a"), "run/cdi/c.yaml": spec("GPU-a")},
			nil, "both name"},
		{"twice in one file", map[string]string{"etc/cdi/a.yaml": spec("GPU-a", "GPU-a"), "run/cdi/c.yaml": spec("GPU-b")},
			[]string{"nvidia.com/gpu=GPU-b /run/cdi/c.yaml"}, "it names the device GPU-a twice"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range tt.files {
				must.Write(t, dir, name, text)
			}
			in, dirs := treeAt(t, dir), []string{"/etc/cdi", "/run/cdi"}
			counts, _ := CountingCDI(readCDI(in, dirs))
			var got, names []string
			for _, name := range slices.Sorted(maps.Keys(counts)) {
				got, names = append(got, name+" "+counts[name].Path), append(names, name)
			}
			must.Equal(t, tt.want, got)
			devices, err := cdiDevices(in, dirs)
			must.Equal(t, names, devices)
			if tt.says != "" || err != nil {
				must.Err(t, err, tt.says)
			}
		})
	}
}

// engine serves a Docker engine's info on a unix socket.
func engine(t *testing.T, info map[string]any) string {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "docker.sock")
	listener, err := net.Listen("unix", socket)
	must.Do(t, err)
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Api-Version", "1.45")
		if v, ok := info["Api-Version"].(string); ok {
			w.Header().Set("Api-Version", v)
		}
		if strings.HasSuffix(r.URL.Path, "/info") {
			w.Header().Set("Content-Type", "application/json")
			must.Err(t, json.NewEncoder(w).Encode(info), "")
		}
	})}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	t.Cleanup(func() {
		must.Err(t, server.Close(), "")
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return socket
}

func TestAskDocker(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "a.yaml"), []byte("kind: nvidia.com/gpu\ndevices:\n- name: GPU-1\n"), 0o600))
	for _, row := range []struct {
		name string
		info map[string]any
		want inventory.Docker
	}{
		{
			"today", map[string]any{
				"ServerVersion": "28.5.2", "CgroupDriver": "systemd", "CgroupVersion": "2", "Driver": "overlay2",
				"DockerRootDir": "/srv/docker", "DefaultRuntime": "runc", "Runtimes": map[string]any{"runc": map[string]any{}, "nvidia": map[string]any{}},
				"CDISpecDirs":       []string{"/etc/cdi"},
				"DiscoveredDevices": []map[string]string{{"Source": "cdi", "ID": "nvidia.com/gpu=0"}},
			}, inventory.Docker{
				Version: "28.5.2", APIVersion: "1.45", CgroupDriver: "systemd", CgroupVersion: "2", StorageDriver: "overlay2",
				RootDir: "/srv/docker", CDI: true, CDIDirs: []string{"/etc/cdi"}, CDIDevices: []string{"nvidia.com/gpu=0"},
				Runtimes: []string{"nvidia", "runc"}, DefaultRuntime: "runc",
			},
		},
		{
			"before 28.2", map[string]any{"ServerVersion": "26.1.5", "CDISpecDirs": []string{dir}},
			inventory.Docker{Version: "26.1.5", APIVersion: "1.45", CDI: true, CDIDirs: []string{dir}, CDIDevices: []string{"nvidia.com/gpu=GPU-1"}},
		},
		{ // it lists what it has taken, so there is none, whatever the files say
			"an engine that lists none", map[string]any{"ServerVersion": "28.5.2", "Api-Version": "1.51", "CDISpecDirs": []string{dir}},
			inventory.Docker{Version: "28.5.2", APIVersion: "1.51", CDI: true, CDIDirs: []string{dir}},
		},
		{"no CDI", map[string]any{"ServerVersion": "28.5.2"}, inventory.Docker{Version: "28.5.2", APIVersion: "1.45"}},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			got, err := askDocker(t.Context(), treeAt(t, "/"), engine(t, row.info))
			must.Do(t, err)
			must.Equal(t, row.want, got, cmpopts.EquateEmpty())
		})
	}
	socket := filepath.Join(t.TempDir(), "docker.sock")
	must.Do(t, os.WriteFile(socket, nil, 0o600))
	if got, err := askDocker(t.Context(), treeAt(t, "/"), socket); err == nil {
		t.Errorf("got %+v of a socket that nobody serves, want an error", got)
	}
}

// TestBrokenCDIFile checks that an engine that answers counts as read, whatever is in CDI's directories.
func TestBrokenCDIFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "broken.yaml", "kind: [")
	must.Write(t, dir, "nvidia.yaml", "kind: nvidia.com/gpu\ndevices:\n- name: GPU-1\n")
	var live Live
	askSoftware(t.Context(), treeAt(t, "/"), Options{AgentPath: "/nowhere", DockerSocket: engine(t, map[string]any{"ServerVersion": "26.1.5", "CDISpecDirs": []string{dir}})}, &live)
	inv := &inventory.Inventory{Software: live.Software}
	addUnread(inv, live.Problems)
	must.Equal(t, []string{"nvidia.com/gpu=GPU-1"}, inv.Software.Docker.CDIDevices)
	at := slices.IndexFunc(inv.Problems, func(p inventory.Problem) bool { return strings.Contains(p.Detail, "broken.yaml") })
	if at < 0 || inv.Problems[at].Subject != inventory.SubjectCDIFile {
		t.Errorf("problems: %v", inv.Problems)
	}
	if slices.Contains(inv.Unread, inventory.SubjectDocker) || slices.Contains(inv.Unread, inventory.SubjectCDIFile) {
		t.Errorf("unread: %q", inv.Unread)
	}
}

func TestDiskFree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	want, err := diskFree(dir)
	if err != nil || want.TotalBytes <= 0 {
		t.Fatalf("got %+v, %v", want, err)
	}
	got, err := diskFree(dir + "/not/yet/there")
	if err != nil || got.TotalBytes != want.TotalBytes || got.Path != dir+"/not/yet/there" {
		t.Errorf("got %+v, %v; want the file system that it will be on", got, err)
	}
}
