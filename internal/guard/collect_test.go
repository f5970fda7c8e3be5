package guard

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestCollect removes images that jobs pulled and did not use for a day, but none that was there
// before, that the operator names, or that a container uses.
func TestCollect(t *testing.T) {
	t.Parallel()
	p := testPolicy()
	p.Socket, p.NodeImage, p.Images = filepath.Join(t.TempDir(), "gpu0/docker.sock"), "ghcr.io/gpu-mode/eval:latest", []string{"^listed:[0-9]$"}
	l := newPulledImages(p, nil)
	var asked []string
	l.untag = func(_ context.Context, image string) error {
		asked = append(asked, image)
		if image == "busy:1" {
			return errors.New("conflict: a container uses it")
		}
		return nil
	}
	for image, fresh := range map[string]bool{
		"old:1": true, "busy:1": true, "young:1": true, "again:1": true, "operators:1": false, "listed:1": true, "ghcr.io/gpu-mode/eval": true,
	} {
		must.Do(t, l.used(image, fresh))
	}
	unused := time.Now().Add(-idleImage - time.Minute)
	for _, image := range []string{"old:1", "busy:1", "again:1"} {
		must.Do(t, os.Chtimes(l.file(image), unused, unused))
	}
	if err := l.used("docker.io/library/again:1", false); err != nil { // under another name
		t.Fatal(err)
	}
	removed, err := l.collect(t.Context(), time.Now())
	if diff := cmp.Diff([]string{"old:1"}, removed); diff != "" || err == nil || len(asked) != 2 {
		t.Errorf("removed %s; asked for %q, %v", diff, asked, err)
	}
	asked = nil
	if removed, err = l.collect(t.Context(), time.Now()); len(removed) > 0 || err == nil || len(asked) != 1 {
		t.Errorf("the second time: %q, %v", asked, err)
	}
	if _, err := (pulledImages{dir: filepath.Join(t.TempDir(), "none")}).collect(t.Context(), time.Now()); err != nil {
		t.Error(err)
	}
}

// TestPullIsNoted checks which pulls create a record.
func TestPullIsNoted(t *testing.T) {
	t.Parallel()
	r := ready(t)
	r.try(t, func(s *job.Spec) { s.Image = "gpu-mode/absent:1" })
	r.try(t, func(s *job.Spec) { s.Image, s.Pull = "gpu-mode/there:1", job.PullAlways })
	list, err := os.ReadDir(filepath.Join(filepath.Dir(filepath.Dir(r.socket)), "pulled"))
	if err != nil || len(list) != 1 {
		t.Errorf("noted: %v, %v", list, err)
	}
}
