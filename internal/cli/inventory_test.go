package cli

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
	"github.com/gpu-mode/kbnode/test/machinetest"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestInventoryText(t *testing.T) {
	t.Parallel()
	m := machinetest.HGXH100()
	m.NVIDIA[2].Dead = true
	got := kbnode(t, "inventory", "--root", m.Dir(t))
	if got.code != 0 || !strings.Contains(got.err, "kbnode: gpu 0000:3a:00.0: ") {
		t.Errorf("code %d, err %q; want the dead GPU named", got.code, got.err)
	}
	golden(t, "hgx-h100.inventory.txt", got.out)
}

func TestInventoryJSON(t *testing.T) {
	t.Parallel()
	for gpus, m := range map[int]machinetest.Machine{8: machinetest.MI300X(), 0: machinetest.NoGPU()} {
		got := kbnode(t, "inventory", "--json", "--root", m.Dir(t))
		var inv inventory.Inventory
		if err := json.Unmarshal([]byte(got.out), &inv); err != nil || got.code != term.ExitDone || got.err != "" || len(inv.GPUs) != gpus || strings.Contains(got.out, `"gpus": null`) {
			t.Errorf("%s: %+v, %v", m.Name, got, err)
		}
	}
}

// foreignWords match what only NVIDIA has.
var foreignWords = regexp.MustCompile(`(?i)nvidia|nvml|cuda|nvlink|gpus: *"?all`)

// TestAMDNodeNeedsNothingOfNVIDIA checks that nothing of NVIDIA's needs to be installed.
func TestAMDNodeNeedsNothingOfNVIDIA(t *testing.T) {
	t.Parallel()
	inv, err := detect.Read(t.Context(), detect.Options{Root: machinetest.MI300X().Dir(t)})
	must.Do(t, err)
	inv.Software = inventory.Software{}
	said := installer.Preflight(inv)
	for _, manager := range []string{"apt-get", "dnf"} {
		steps, err := installer.Packages(inv, manager)
		if err != nil || len(steps) == 0 {
			t.Fatalf("%v, %v", steps, err)
		}
		for _, s := range steps {
			said = append(said, s.Why+": "+s.String())
		}
	}
	if i := slices.IndexFunc(said, foreignWords.MatchString); i >= 0 || len(said) < 4 {
		t.Errorf("it says %q", said)
	}
}

func TestImageResult(t *testing.T) {
	t.Parallel()
	cur := &image.Image{ID: "sha256:11", Digest: "sha256:dd", Canary: &image.Canary{Passed: true, Slot: "gpu3", Seconds: 4.26, GPU: "NVIDIA H100", Torch: "2.9"}}
	for _, tt := range []struct {
		r    image.Result
		auto bool
		want string
	}{
		{image.Result{Action: image.ActionNone, Name: "x:1", Current: cur}, false, "Up to date: x:1 is sha256:dd."},
		{image.Result{Action: image.ActionNone, Name: "x:1", Current: cur, Reason: "it was built here"}, true, ""},
		{image.Result{Action: image.ActionSkipped, Name: "x:1", Current: cur, Reason: "sha256:ee was refused"}, true, ""},
		{image.Result{Action: image.ActionSkipped, Name: "x:1", Current: cur, Reason: "sha256:ee was refused"}, false, "x:1 stays sha256:dd: sha256:ee was refused."},
		{
			image.Result{Action: image.ActionUpdated, Name: "x:1", Current: cur, Previous: &image.Image{ID: "sha256:00"}}, true,
			"x:1 is now sha256:dd, which passed in gpu3, 4.3 s, NVIDIA H100, torch 2.9.\nsudo kbnode image rollback returns to sha256:00.",
		},
		{
			image.Result{Action: image.ActionMoved, Name: "x:1", Current: cur, Reason: "another image has its name"}, false,
			"Moved: x:1 is not sha256:dd: another image has its name. Type sudo kbnode image update.",
		},
		{image.Result{Action: image.ActionRefused, Name: "x:1", Reason: "no GPU"}, true, "Refused: x:1 stays not known yet: no GPU."},
		{image.Result{Action: image.ActionLater, Name: "x:1", Reason: "busy"}, true, "Not now: busy; the next run tries again, and sudo kbnode image update waits for it."},
	} {
		must.Equal(t, tt.want, imageResult(tt.r, tt.auto))
	}
}

func TestPrintImages(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	list := image.List{
		Name: "x:1", StandsFor: "sha256:1111111111111111",
		Images: []image.Row{
			{Role: "current", Image: image.Image{ID: "sha256:1111111111111111", Digest: "sha256:ddddddddddddddddd", Size: 3 << 30, Since: now.Add(-time.Hour), Canary: &image.Canary{Passed: true, Slot: "gpu0", Seconds: 2}}},
			{Role: "previous", Image: image.Image{ID: "sha256:2222222222222222", Since: now.Add(-50 * time.Hour)}},
		},
		Refused: []image.Refusal{{Digest: "sha256:eeeeeeeeeeeeeeeee", Reason: "it fails", Time: now}},
	}
	var b bytes.Buffer
	printImages(&b, list, now)
	golden(t, "images.txt", b.String())
	for stands, text := range map[string]string{"": "x:1 is not on this node", "sha256:3": "x:1 is 3, which no canary has tested"} {
		b.Reset()
		list.StandsFor = stands
		printImages(&b, list, now)
		if !strings.Contains(b.String(), text) {
			t.Errorf("%q is not said in %s", text, b.String())
		}
	}
}

// TestLayerProgress rewrites one line, which the next output replaces.
func TestLayerProgress(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		60: "\r\x1b[K  bbbbbbbbbbbb: Downloading 1 MiB of 4 MiB\r\x1b[K  Step 1/2 : FROM x\n",
		0:  "  Step 1/2 : FROM x\n",
	} {
		var b bytes.Buffer
		p := layerProgress{Progress: &term.Progress{S: term.Streams{Err: &b}, Width: width}}
		for _, now := range []image.Progress{
			{Layer: "latest", Status: "Pulling from x"},
			{Layer: "bbbbbbbbbbbb", Status: "Downloading", Current: 1 << 20, Total: 4 << 20},
			{Status: "Digest: sha256:1"},
			{Status: "Step 1/2 : FROM x "},
		} {
			p.update(now)
		}
		must.Equal(t, want, b.String())
	}
}

func TestImageBuildPrint(t *testing.T) {
	t.Parallel()
	got := kbnode(t, "image", "build", "--variant", "rocm", "--print", "--build-arg", "TORCH_VERSION=2", "--build-arg", "http_proxy=")
	if got.code != term.ExitDone || got.out != evaluation.Dockerfile("rocm") {
		t.Errorf("%+v", got)
	}
	if got := kbnode(t, "image", "build", "--print"); got.code != term.ExitNo || !strings.Contains(got.err, "or choose one with --variant cpu, cuda, rocm") {
		t.Errorf("without a GPU: %+v", got)
	}
}
