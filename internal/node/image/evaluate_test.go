package image

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	evaluation "github.com/gpu-mode/kbnode/packaging/image"
	"github.com/gpu-mode/kbnode/test/must"
)

func TestEvaluate(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.slots = []Slot{{Index: 0, Name: "gpu0"}, {Index: 1, Name: "gpu1", Away: "it is parked: dirty"}, {Index: 2, Name: "gpu2", Job: "job 7"}, {Index: 3, Name: "gpu3"}, {Index: 4, Name: "gpu4", Owes: "gpu.proof"}}
	w.onCanary = func(_ context.Context, slot Slot) error {
		if slot.Index == 3 { // a job comes while it runs
			return errJob
		}
		return nil
	}
	u := w.updater(must.MemoryDir(t))
	delete(w.names, name)
	if _, err := u.Evaluate(t.Context(), false); !errors.Is(err, docker.ErrNotFound) {
		t.Errorf("no image is here: %v", err)
	}
	w.names[name] = id(1)
	want := []Evaluation{
		{Canary: Canary{Passed: true, Slot: "gpu0"}},
		{Index: 1, Canary: Canary{Slot: "gpu1"}, Missed: "it is parked: dirty"},
		{Index: 2, Canary: Canary{Slot: "gpu2"}, Missed: "job 7 runs in it"},
		{Index: 3, Canary: Canary{Slot: "gpu3"}, Missed: "a job started and went first"},
		{Index: 4, Canary: Canary{Slot: "gpu4"}, Missed: "gpu.proof"},
	}
	for _, atOnce := range []bool{false, true} {
		got, err := u.Evaluate(t.Context(), atOnce)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("at once %t: %v %s", atOnce, err, diff)
		}
	}
}

func TestEvaluateAtOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.names[name] = id(1)
	w.slots = []Slot{{Index: 0, Name: "gpu0"}, {Index: 1, Name: "gpu1"}}
	here := make(chan int)
	w.onCanary = func(ctx context.Context, slot Slot) error {
		select { // each waits for the other
		case here <- slot.Index:
		case <-here:
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	all, err := w.updater(must.MemoryDir(t)).Evaluate(t.Context(), true)
	if err != nil || len(all) != 2 || !all[0].Passed || !all[1].Passed {
		t.Errorf("%+v, %v", all, err)
	}
}

func TestAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	u := w.updater(must.MemoryDir(t))
	delete(w.names, name)
	if _, err := u.Again(t.Context()); !errors.Is(err, docker.ErrNotFound) {
		t.Errorf("no image is here: %v", err)
	}
	w.names[name] = id(1)
	if _, err := u.Again(t.Context()); !errors.Is(err, ErrNoRegistry) {
		t.Errorf("it was loaded: %v", err)
	}
	w.digests["other.example/eval@"+digest(1)] = id(1)
	if _, err := u.Again(t.Context()); !errors.Is(err, ErrNoRegistry) {
		t.Errorf("it was pulled by another name: %v", err)
	}
	ref := ref(1)
	w.digests[ref] = id(1) // as docker pull, or a job's pull, leaves it
	if got, err := u.Again(t.Context()); got != digest(1) || err != nil || len(w.pulled) != 1 || w.pulled[0] != ref {
		t.Errorf("pulled by its name: %s, %v; %q", got, err, w.pulled)
	}
	w.cut = true
	if _, err := u.Again(t.Context()); !errors.Is(err, ErrUnrecorded) || !strings.Contains(err.Error(), "unexpected EOF") {
		t.Errorf("pulled by its name, and the registry does not answer: %v", err)
	}
	w.cut = false
	delete(w.digests, ref)
	s := (&State{}).named(name)
	s.Current = &Image{ID: id(1), Digest: digest(1), From: name}
	must.Do(t, s.write(u.Dir))
	if got, err := u.Again(t.Context()); got != digest(1) || err != nil {
		t.Errorf("%s, %v", got, err)
	}
	s.Current.Digest = ""
	must.Do(t, s.write(u.Dir))
	if _, err := u.Again(t.Context()); !errors.Is(err, ErrNoRegistry) {
		t.Errorf("it was built, and has a digest: %v", err)
	}
	s.Current.Digest = digest(1)
	must.Do(t, s.write(u.Dir))
	if w.digests[ref] != id(1) || w.names[name] != id(1) {
		t.Errorf("pulled %v, named %v", w.digests, w.names)
	}
	w.cut = true
	if _, err := u.Again(t.Context()); err == nil || errors.Is(err, ErrUnrecorded) {
		t.Error("a pull that is cut off is not told of")
	}
}

// TestBuildContext packs a Dockerfile's directory, and nothing that a link in it points to, nor sockets and pipes.
func TestBuildContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "Dockerfile", "FROM x")
	must.Write(t, dir, "sub/run.sh", "#!")
	must.Do(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	must.Do(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	must.Do(t, unix.Mknod(filepath.Join(dir, "sub/socket"), unix.S_IFSOCK|0o600, 0))
	packed := func(src Source, err error) (got []string) {
		must.Do(t, err)
		for in := tar.NewReader(src.archive()); ; {
			h, err := in.Next()
			if errors.Is(err, io.EOF) {
				return got
			}
			must.Do(t, err)
			text, err := io.ReadAll(in)
			must.Do(t, err)
			got = append(got, h.Name+" "+h.Linkname+" "+string(text))
		}
	}
	must.Equal(t, []string{"Dockerfile  FROM x", "link /etc/passwd ", "sub/  ", "sub/run.sh  #!"}, packed(FileSource(filepath.Join(dir, "Dockerfile"), nil)))
	must.Equal(t, []string{"cuda.Dockerfile  " + evaluation.Dockerfile("cuda")}, packed(OwnSource("cuda", nil)))
}

func TestBuildArgs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"FROM x": "it has none", "\ufeffFROM x\nARG A": "it has A", "\ufeffARG A\nFROM x": "it has A",
		"ARG BASE=debian:13\nFROM ${BASE}\narg BASE\nARG A B=2 C=\"x\"\n":           "it has A, B, BASE, C",
		"FROM x\nARG \\\n  # what it is\n A=1 \\\r\n B\n# ARG NO\n RUN echo ARG NO": "it has A, B",
		"FROM x\nRUN a \\\n && ARGS=1 b\nARG\nARG =x":                               "it has none",
		"# FROM x": "it has no FROM", "RUN FROM x": "it has no FROM",
	} {
		_, err := Source{Text: in}.with([]string{"NO=1"})
		must.Err(t, err, want)
	}
	for arg, want := range map[string]string{"A=": "", "a=": "no ARG", "HTTPS_PROXY=": "", "https_proxy=": "", "Https_Proxy=": "no ARG", "=": "no ARG"} {
		_, err := Source{Text: "FROM x\nARG A"}.with([]string{arg})
		must.Err(t, err, want)
	}
}
