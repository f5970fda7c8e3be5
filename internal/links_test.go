package internal_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// thinkers decide, and read nothing: they link facts without their readers.
var thinkers = []string{"job", "node/health", "plan", "plan/config", "plan/inventory", "plan/nvml", "plan/split"}

// maxLinked is how many packages a thinker may link, itself and the standard library included. One reader
// of a machine brings 200, so the number need not be exact.
const maxLinked = 119

// readers are packages that a thinker links not even through another one, by prefix.
var readers = []string{
	"github.com/gpu-mode/kbnode/internal/machine/detect", "github.com/gpu-mode/kbnode/internal/machine/docker",
	"github.com/gpu-mode/kbnode/internal/node/health/signals", "github.com/gpu-mode/kbnode/internal/machine/systemd",
	"github.com/coreos/go-systemd", "github.com/godbus/dbus", "github.com/moby/", "golang.org/x/sys", "net/http", "os/exec",
}

// TestThinkersLinkNoReader tests what depguard cannot: what a package links through others.
func TestThinkersLinkNoReader(t *testing.T) {
	t.Parallel()
	for _, name := range thinkers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "go", "list", "-deps", "./internal/"+name)
			cmd.Dir = root
			out, err := cmd.Output()
			must.Do(t, err)
			linked := strings.Fields(string(out))
			if len(linked) > maxLinked {
				t.Errorf("it links %d packages, more than %d: go list -deps ./internal/%s", len(linked), maxLinked, name)
			}
			for _, pkg := range linked {
				if slices.ContainsFunc(readers, func(prefix string) bool { return strings.HasPrefix(pkg, prefix) }) {
					t.Errorf("it links %s, which reads; take what it reads as a value", pkg)
				}
			}
		})
	}
}
