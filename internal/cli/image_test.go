package cli

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/image"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

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
		{
			image.Result{Action: image.ActionUpdated, Name: "x:1", Current: cur, Previous: &image.Image{ID: "sha256:00"}}, true,
			"x:1 is now sha256:dd, which passed in gpu3, 4.3 s, NVIDIA H100, torch 2.9.\nsudo kbnode image rollback returns to sha256:00.",
		},
		{image.Result{Action: image.ActionRefused, Name: "x:1", Reason: "no GPU"}, true, "Refused: x:1 stays not known yet: no GPU."},
		{image.Result{Action: image.ActionLater, Name: "x:1", Reason: "busy"}, true, "Not now: busy; the next run tries again, and sudo kbnode image update waits for it."},
	} {
		if d := cmp.Diff(tt.want, imageResult(tt.r, tt.auto)); d != "" {
			t.Error(d)
		}
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
		Trial:   &image.Trial{Jobs: 3, Failed: 1},
	}
	var b bytes.Buffer
	printImages(&b, list, now)
	want := `IMAGE     DIGEST        ID            SIZE     HERE   CANARY
current   dddddddddddd  111111111111  3.0 GiB  1h00m  passed in gpu0, 2.0 s
previous  -             222222222222  -        2d     -

x:1 is on trial: 1 of its first 3 jobs in a row have failed.
Refused: eeeeeeeeeeee (0s ago): it fails
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}
	for stands, text := range map[string]string{"": "x:1 is not on this node", "sha256:3": "x:1 is 3, which no canary has tested"} {
		b.Reset()
		list.StandsFor = stands
		if printImages(&b, list, now); !strings.Contains(b.String(), text) {
			t.Errorf("%q is not said in %s", text, b.String())
		}
	}
}

// TestLayerProgress rewrites one line, and leaves the count on the screen.
func TestLayerProgress(t *testing.T) {
	t.Parallel()
	for width, want := range map[int]string{
		60: "\r\x1b[K  1 of 1 layers done; aaaaaaaaaaaa: Already exists" +
			"\r\x1b[K  1 of 2 layers done; bbbbbbbbbbbb: Downloading 1 MiB of 4" +
			"\r\x1b[K  1 of 2 layers done\n  Step 1/2 : FROM x\n",
		0: "  Step 1/2 : FROM x\n",
	} {
		var b bytes.Buffer
		p := layerProgress{progress: &progress{s: Streams{Err: &b}, width: width}}
		for _, now := range []image.Progress{
			{Layer: "latest", Status: "Pulling from x"},
			{Layer: "aaaaaaaaaaaa", Status: "Already exists"},
			{Layer: "bbbbbbbbbbbb", Status: "Downloading", Current: 1 << 20, Total: 4 << 20},
			{Status: "Digest: sha256:1"},
			{Status: "Step 1/2 : FROM x "},
		} {
			p.tell(now)
		}
		if d := cmp.Diff(want, b.String()); d != "" {
			t.Error(d)
		}
	}
}

func TestImageBuildPrint(t *testing.T) {
	t.Parallel()
	got := kbnode(t, "image", "build", "--variant", "rocm", "--print", "--build-arg", "TORCH_VERSION=2", "--build-arg", "http_proxy=")
	if got.code != exitDone || got.out != evaluation.Dockerfile("rocm") {
		t.Errorf("%+v", got)
	}
	if got := kbnode(t, "image", "build", "--print"); got.code != exitNo || !strings.Contains(got.err, "or choose one with --variant cpu, cuda, rocm") {
		t.Errorf("without a GPU: %+v", got)
	}
}
