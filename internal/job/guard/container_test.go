package guard

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
)

func testPolicy() plan.JobPolicy {
	return plan.JobPolicy{
		WrittenBy: "kbnode", Slot: 0, Name: "gpu0", User: "kbnode-gpu0", Slice: "buildkite-gpu0.slice",
		CPUs: "2-3,10-11", MemoryNodes: "0", MemoryBytes: 32 << 30, PidsLimit: 4096, ShmBytes: 8 << 30,
		Vendor: "nvidia", GPUs: []plan.PolicyGPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", PCI: "0000:1b:00.0"}},
		CDIDevices:   []string{"nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555"},
		Env:          []string{"KERNELBOT_GPU_INDEX=0", "NVIDIA_VISIBLE_DEVICES=GPU-11111111-2222-3333-4444-555555555555"},
		WorkRoot:     "/var/lib/buildkite-agent/gpu-0",
		Binary:       "/usr/bin/kbnode",
		DockerSocket: "/var/run/docker.sock",
		Socket:       "/run/kbnode/gpu0/job.sock",
	}
}

// testFacts returns facts of a made-up node.
func testFacts() facts {
	return facts{
		gids: func([]string) []string { return []string{"44", "993"} }, named: []string{"39"},
		present: func(nodes []string) []string {
			return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == "/dev/nvidia-uvm" })
		},
		user: "990:980",
	}
}

var update = flag.Bool("update", false, "write the golden files")

// TestContainer compares what the engine gets with testdata/container/*.txtar, which contain the
// changes of the policy and of the spec, and the request of each case.
func TestContainer(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/container/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil || len(archive.Files) != 3 {
				t.Fatal(archive, err)
			}
			policy, spec := testPolicy(), rootSpec("0190")
			spec.Mounts = nil
			for i, v := range []any{&policy, spec} {
				must.Do(t, json.Unmarshal(archive.Files[i].Data, v))
			}
			must.Do(t, spec.Validate())
			dir := filepath.Join(t.TempDir(), "checkout")
			must.Do(t, os.MkdirAll(filepath.Join(dir, "data"), 0o700))
			got, err := fromSpec(policy, testFacts(), spec, dir)
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			var text bytes.Buffer
			enc := json.NewEncoder(&text)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			must.Do(t, enc.Encode(got))
			engine := strings.ReplaceAll(text.String(), filepath.Dir(dir), "")
			if *update {
				archive.Files[2].Data = []byte(engine)
				must.Do(t, os.WriteFile(file, txtar.Format(archive), 0o600))
				return
			}
			must.Equal(t, string(archive.Files[2].Data), engine)
		})
	}
}

// made makes the request of a spec without mounts.
func made(policy plan.JobPolicy, f facts, change func(*job.Spec)) (*container.CreateRequest, error) {
	spec := rootSpec("0190")
	spec.Mounts = nil
	change(spec)
	return fromSpec(policy, f, spec, "/none")
}

// TestAllThatIsRefused names at once what the node refuses of a job.
func TestAllThatIsRefused(t *testing.T) {
	t.Parallel()
	policy := testPolicy()
	policy.Images = []string{}
	_, err := made(policy, testFacts(), func(s *job.Spec) {
		s.Image, s.User, s.Mounts = "a", "991", []job.Mount{{Source: "none", Target: "/a"}, {Source: "neither", Target: "/b"}}
	})
	for _, want := range []string{"job.allowed_images", `"991"`, `volumes: "none"`, `volumes: "neither"`} {
		if !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
}

func TestAllowedImages(t *testing.T) {
	t.Parallel()
	policy := testPolicy()
	policy.Images = []string{}
	if err := allowImage(policy, "alpine"); err == nil {
		t.Error("an empty list allows an image")
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	pinned := "sha256:" + strings.Repeat("b", 64)
	policy.Images = []string{`^ghcr\.io/gpu-mode/eval(:[a-z0-9]+)?(@sha256:[0-9a-f]{64})?$`, `^python:3\.11$`, `^alpine:latest$`, `a|b`, `node:20.*`, `go:1@` + pinned}
	for image, want := range map[string]bool{
		"ghcr.io/gpu-mode/eval":               true,
		"ghcr.io/gpu-mode/eval:v1@" + digest:  true,
		"ghcr.io/gpu-mode/eval@" + digest:     true,
		"docker.io/library/python:3.11":       true,
		"python:3.11":                         true,
		"alpine":                              true, // means latest
		"b":                                   true,
		"ghcr.io/gpu-mode/eval2":              false,
		"x/ghcr.io/gpu-mode/eval":             false,
		"python":                              false,
		"python:3.11-slim":                    false,
		"python:3x11":                         false,
		"docker.io/evil/python:3.11":          false,
		digest:                                false,
		"bb":                                  false,
		"node:20-slim":                        true,
		"node:20@" + digest:                   false, // may be any node
		"docker.io/library/node:20@" + digest: false,
		"ghcr.io:443/gpu-mode/eval":           false,
		"go:1@" + pinned:                      true,
		"go:1@" + digest:                      false,
	} {
		_, err := made(policy, testFacts(), func(s *job.Spec) { s.Image = image })
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "job.allowed_images") {
			t.Errorf("%s: %v", image, err)
		}
	}
}

// TestNoContainer makes none that only looks isolated.
func TestNoContainer(t *testing.T) {
	t.Parallel()
	noGPU := testPolicy()
	noGPU.CDIDevices = nil
	if got, err := made(noGPU, testFacts(), func(*job.Spec) {}); err == nil {
		t.Errorf("a slot without a GPU made a container: %+v", got.HostConfig)
	}
	for name, change := range map[string]func(*job.Spec){
		"a system account":    func(s *job.Spec) { s.User = "33" },
		"another's group":     func(s *job.Spec) { s.User = "1000:33" },
		"a system group":      func(s *job.Spec) { s.Groups = []string{"33"} },
		"no file of the tree": func(s *job.Spec) { s.Mounts = []job.Mount{{Source: "absent", Target: "/x"}} },
	} {
		if got, err := made(testPolicy(), testFacts(), change); err == nil {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestCheckImage(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	must.Do(t, os.Symlink("/proc/self/fd/8", filepath.Join(source, "link")))
	g := &guard{policy: testPolicy(), facts: testFacts()}
	for name, row := range map[string]struct {
		user, dir string
		image     docker.ImageConfig
		want      string
	}{
		"nothing":                     {"", "", docker.ImageConfig{}, ""},
		"an image's account":          {"", "", docker.ImageConfig{User: "33"}, `image "i": "33" is a system account`},
		"an image's, replaced":        {"0", "", docker.ImageConfig{User: "33"}, ""},
		"another slot's":              {"", "", docker.ImageConfig{User: "kbnode-gpu1"}, "another slot's user"},
		"another's group":             {"", "", docker.ImageConfig{User: "1000:33"}, `"33" is a system group`},
		"an image's own":              {"", "", docker.ImageConfig{User: "1000:100"}, ""},
		"the slot's":                  {"", "", docker.ImageConfig{User: "990:980"}, ""},
		"the GPU's group":             {"", "", docker.ImageConfig{User: "app:993"}, ""},
		"a user namespace's":          {"", "", docker.ImageConfig{User: "100000"}, "is a system account"},
		"an image's directory":        {"", "", docker.ImageConfig{WorkingDir: "/proc/self/fd/7"}, "cannot start below /proc"},
		"an image's, by dots":         {"", "", docker.ImageConfig{WorkingDir: "/x/../../sys"}, "cannot start below /sys"},
		"a link in the checkout":      {"", "/w/link", docker.ImageConfig{}, "goes through a symbolic link"},
		"below a link":                {"", "", docker.ImageConfig{WorkingDir: "/w/link/x"}, "goes through a symbolic link"},
		"no directory":                {"", "", docker.ImageConfig{WorkingDir: `C:\x`}, `workdir: the image's "C:\\x" is not an absolute path`},
		"no directory, replaced":      {"", "/x", docker.ImageConfig{WorkingDir: "x"}, ""},
		"a NUL in it":                 {"", "", docker.ImageConfig{WorkingDir: "/x\x00"}, "is not an absolute path"},
		"ports":                       {"", "", docker.ImageConfig{ExposedPorts: map[string]struct{}{"80": {}, "53/udp": {}}}, ""},
		"a range of ports":            {"", "", docker.ImageConfig{ExposedPorts: map[string]struct{}{"1-65535/tcp": {}}}, `image "i" exposes "1-65535/tcp", which is no port`},
		"no port":                     {"", "", docker.ImageConfig{ExposedPorts: map[string]struct{}{"http/tcp": {}}}, "which is no port"},
		"variables":                   {"", "", docker.ImageConfig{Env: []string{"A=b=\n", "B", ""}}, ""},
		"a variable without a name":   {"", "", docker.ImageConfig{Env: []string{"A=b", "=b"}}, `image "i" has a variable "=b"`},
		"a NUL in a variable":         {"", "", docker.ImageConfig{Env: []string{"A=b\x00"}}, `has a variable "A=b\x00"`},
		"a directory of the checkout": {"", "/w/none/x", docker.ImageConfig{}, ""},
	} {
		wanted := &container.CreateRequest{Config: &container.Config{Image: "i", User: row.user, WorkingDir: row.dir},
			HostConfig: &container.HostConfig{Mounts: []mount.Mount{bind(source, "/w", false)}}}
		err := g.checkImage(wanted, row.image)
		if got := fmt.Sprint(err); row.want == "" && err != nil || !strings.Contains(got, row.want) {
			t.Errorf("%s: %s, want %q", name, got, row.want)
		}
	}
}

func TestLinkNodes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	must.Do(t, os.Symlink("/dev/none", filepath.Join(dir, "1:5"))) // another driver's
	for range 2 {
		must.Do(t, linkNodes(dir, []string{"/dev/null", "/dev/zero", "/dev/none", file}))
	}
	for name, want := range map[string]string{"1:3": "/dev/null", "1:5": "/dev/zero"} {
		if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != want {
			t.Errorf("%s leads to %q, want %s: %v", name, got, want, err)
		}
	}
	if all, err := os.ReadDir(dir); err != nil || len(all) != 3 {
		t.Errorf("links are %v: %v", all, err)
	}
}
