package packaging_test

import (
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestExamples compares the examples in archives and packages with those that kbnode carries along.
func TestExamples(t *testing.T) {
	t.Parallel()
	text := must.Read(t, "../.goreleaser.yaml")
	type content struct{ Src, Dst string }
	var conf struct {
		Archives []struct{ Files []content }
		NFPMs    []struct{ Contents []content }
	}
	if err := yaml.Unmarshal([]byte(text), &conf); err != nil || len(conf.Archives) != 1 || len(conf.NFPMs) != 1 {
		t.Fatal(err, conf)
	}
	want := []string{"README.md", "config.yaml"}
	err := fs.WalkDir(examples.Files, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			want = append(want, name)
		}
		return err
	})
	must.Do(t, err)
	slices.Sort(want)
	for where, list := range map[string][]content{"examples": conf.Archives[0].Files, "/usr/share/doc/kbnode/examples": conf.NFPMs[0].Contents} {
		var got []string
		for _, c := range list {
			if c.Dst != where && !strings.HasPrefix(c.Dst, where+"/") {
				continue
			}
			sources, err := filepath.Glob("../" + c.Src)
			if err != nil || len(sources) == 0 {
				t.Errorf("%s: %v", c.Src, err)
			}
			for _, source := range sources {
				if path.Base(source) == "__pycache__" {
					continue // of someone who ran them here
				}
				to := c.Dst
				if path.Base(to) != path.Base(source) {
					to = path.Join(to, path.Base(source)) // a directory
				}
				got = append(got, strings.TrimPrefix(to, where+"/"))
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", where, diff)
		}
	}
}
