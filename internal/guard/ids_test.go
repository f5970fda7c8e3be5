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
)

func TestSuits(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	if err := os.Symlink("/proc/self/fd/8", filepath.Join(source, "link")); err != nil {
		t.Fatal(err)
	}
	g := &guard{policy: testPolicy(), facts: testFacts()}
	for name, row := range map[string]struct {
		user, dir string
		image     docker.ImageConfig
		want      string
	}{
		"nothing":                     {"", "", docker.ImageConfig{}, ""},
		"an image's account":          {"", "", docker.ImageConfig{User: "33"}, `image "i": "33" is a system account`},
		"an image's, replaced":        {"0", "", docker.ImageConfig{User: "33"}, ""},
		"an image's directory":        {"", "", docker.ImageConfig{WorkingDir: "/proc/self/fd/7"}, "cannot start below /proc"},
		"an image's, by dots":         {"", "", docker.ImageConfig{WorkingDir: "x/../../sys"}, "cannot start below /sys"},
		"a link in the checkout":      {"", "/w/link", docker.ImageConfig{}, "goes through a symbolic link"},
		"below a link":                {"", "", docker.ImageConfig{WorkingDir: "/w/link/x"}, "goes through a symbolic link"},
		"a directory of the checkout": {"", "/w/none/x", docker.ImageConfig{}, ""},
	} {
		wanted := &container.CreateRequest{Config: &container.Config{Image: "i", User: row.user, WorkingDir: row.dir},
			HostConfig: &container.HostConfig{Mounts: []mount.Mount{bind(source, "/w", false)}}}
		err := g.suits(wanted, row.image)
		if got := fmt.Sprint(err); row.want == "" && err != nil || !strings.Contains(got, row.want) {
			t.Errorf("%s: %s, want %q", name, got, row.want)
		}
	}
}

func TestOthersIDs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/:\nkbnode-gpu0:x:2000:2001::/:\nkbnode-gpu1:x:2002:2003::/:\nkbnode-git:x:2004:2005::/:\nalice:x:1000:1000::/:\nbroken:x\n",
		"subuid": "alice:100000:65536\nbroken:x:9999999\n", "subgid": "alice:300000:65536\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := &builder{facts: facts{user: "2000:2001"}}
	for user, free := range map[string]bool{
		"": true, "root": true, "2000:2001": true, "1000": true, "2002": false, "0:2003": false, "2004": false, "0:2005": false, "2003": true, "100000": false, "165535": false,
		"165536": true, "300000": true, "0:300000": false, "1000:100000": true,
	} {
		if err := b.othersIDs(root, user, nil); (err == nil) != free {
			t.Errorf("user %q: %v", user, err)
		}
	}
	if err := b.othersIDs(root, "", []string{"video", "2003"}); err == nil {
		t.Error("another slot's group passes")
	}
}
