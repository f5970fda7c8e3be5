package image

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestBuildContext packs a Dockerfile's directory, and nothing that a link in it points to.
func TestBuildContext(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "Dockerfile", "FROM x")
	must.Write(t, dir, "sub/run.sh", "#!")
	must.Do(t, os.Symlink("/etc/passwd", filepath.Join(dir, "link")))
	src, err := FileSource(filepath.Join(dir, "Dockerfile"), nil)
	must.Do(t, err)
	var got []string
	for in := tar.NewReader(src.archive()); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		must.Do(t, err)
		text, err := io.ReadAll(in)
		must.Do(t, err)
		got = append(got, h.Name+" "+h.Linkname+" "+string(text))
	}
	must.Equal(t, []string{"Dockerfile  FROM x", "link /etc/passwd ", "sub/  ", "sub/run.sh  #!"}, got)
}

func TestBuildArgs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"FROM x": "it has none",
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
