package guard

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/test/must"
)

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
		"an image's, by dots":         {"", "", docker.ImageConfig{WorkingDir: "x/../../sys"}, "cannot start below /sys"},
		"a link in the checkout":      {"", "/w/link", docker.ImageConfig{}, "goes through a symbolic link"},
		"below a link":                {"", "", docker.ImageConfig{WorkingDir: "/w/link/x"}, "goes through a symbolic link"},
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
