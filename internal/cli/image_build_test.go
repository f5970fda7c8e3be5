package cli

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	evaluation "github.com/gpu-mode/kbnode/packaging/image"
)

// TestImageBuildRefuses checks that what cannot be built is refused. Docker itself only warns
// about most of it.
func TestImageBuildRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good, link, large, text := filepath.Join(dir, "Dockerfile"), filepath.Join(dir, "link"), filepath.Join(dir, "large"), filepath.Join(dir, "text")
	err := errors.Join(
		os.WriteFile(good, []byte("ARG BASE=x\nFROM $BASE\nARG NUMPY\n"), 0o600),
		os.WriteFile(text, []byte("steps:\n"), 0o600),
		os.WriteFile(large, nil, 0o600), os.Truncate(large, 1<<20+1),
		os.Symlink(good, link),
	)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		code int
		want string
	}{
		{"--dockerfile /dev", exitUsage, "--dockerfile /dev is not a file"},
		{"--dockerfile " + dir, exitUsage, "is not a file; name the Dockerfile itself"},
		{"--dockerfile " + link, exitUsage, "is a symlink; name its target"},
		{"--dockerfile " + large, exitUsage, "too much for a Dockerfile"},
		{"--dockerfile " + text, exitUsage, "it has no FROM"},
		{"--dockerfile " + good + "x", exitNo, "no such file"},
		{"--dockerfile " + good + " --variant cpu", exitUsage, "are for kbnode's own Dockerfiles"},
		{"--dockerfile " + good + " --print", exitUsage, "are for kbnode's own Dockerfiles"},
		{"--dockerfile " + good + " --build-arg NUMPYS=1", exitUsage, "has no ARG of that name; it has BASE, NUMPY"},
		{"--dockerfile " + good + " --build-arg BASE", exitUsage, `--build-arg "BASE": write NAME=VALUE`},
		{"--dockerfile " + good + " --build-arg =1", exitUsage, `--build-arg "": `},
		{"--dockerfile " + good + " --build-arg BASE=1 --build-arg BASE=2", exitUsage, `--build-arg BASE is both "1" and "2"`},
		{"--variant gpu", exitUsage, `--variant "gpu": write one of cpu, cuda, rocm`},
		{"--variant ../x", exitUsage, "write one of cpu, cuda, rocm"},
		{"--variant cpu --build-arg TORCH_VERSION=2", exitUsage, "kbnode's cpu.Dockerfile has no ARG of that name; it has BASE, EXTRA_PACKAGES"},
		{"--print", exitNo, "or choose one with --variant cpu, cuda, rocm"},
	} {
		if got := kbnode(t, append([]string{"image", "build"}, strings.Fields(tt.args)...)...); got.code != tt.code || !strings.Contains(got.err, tt.want) || got.out != "" {
			t.Errorf("%s: %+v; want %d, %q", tt.args, got, tt.code, tt.want)
		}
	}
	got := kbnode(t, "image", "build", "--variant", "rocm", "--print", "--build-arg", "TORCH_VERSION=2", "--build-arg", "http_proxy=")
	if got.code != exitDone || got.out != evaluation.Dockerfile("rocm") {
		t.Errorf("%+v", got)
	}
}
