package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/test/bundletest"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestInstallBundleRefused says how to try an image again that an installation leaves alone from now on, and frees slots that
// an earlier run has held, because another image came since.
func TestInstallBundleRefused(t *testing.T) { // not parallel: it executes what was just written
	must.Root(t, "makes users")
	host, sd := bareMachine(t)
	h := &imageHost{names: map[string]string{}, free: 1 << 40, job: "job 7"}
	path := newBundle().Write(t)
	_, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Err(t, err, "was not tested")
	must.Equal(t, []string{untilImage}, drainsOf(t, host))

	h.job, h.names[jobsImage] = "", "sha256:other"
	_, err = installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Err(t, err, "the image of "+path+" was refused: it fails\neverything else was done; sudo kbnode image update --bundle "+path+" tries it again")
	if strings.Contains(err.Error(), "AGAIN") || !slices.ContainsFunc(sd.Words(), startsAgent) {
		t.Errorf("%v; systemd was told %q", err, sd.Words())
	}
	must.Equal(t, 0, len(drainsOf(t, host)))
	must.Equal(t, "sha256:other", h.names[jobsImage])

	report, err := installsBundle(t, host, h, path, InstallOptions{}, &screen{})
	must.Do(t, err)
	must.Equal(t, image.ActionSkipped, report.Image.Action)
}

// TestInstallRefusesBundle checks what ends an installation with a bundle before anything is written.
func TestInstallRefusesBundle(t *testing.T) { // not parallel: it executes what was just written
	for _, tt := range []struct {
		name   string
		change func(b *bundletest.Bundle, h *imageHost, o *InstallOptions)
		says   string
	}{
		{"a damaged image", func(b *bundletest.Bundle, _ *imageHost, _ *InstallOptions) {
			b.Manifest = func(m *bundle.Manifest) { m.Image.SHA256 = strings.Repeat("0", 64) }
		}, "its image.tar has SHA-256 "},
		{"no room", func(_ *bundletest.Bundle, h *imageHost, _ *InstallOptions) { h.free = 10 << 30 }, "10 GiB are free"},
		{"an agent of another version", func(b *bundletest.Bundle, _ *imageHost, _ *InstallOptions) { b.AgentVersion = "3.140.0" },
			"is buildkite-agent 3.139.0, not 3.140.0 as its manifest says"},
		{"an agent that slots cannot run", func(b *bundletest.Bundle, _ *imageHost, _ *InstallOptions) {
			b.Agent = agentProgram("3.139.0", []string{"name"})
		}, "does not support tags"},
		{"no agent", func(b *bundletest.Bundle, _ *imageHost, _ *InstallOptions) { b.Agent = "\x7fELF" }, "is not a buildkite-agent for this machine"},
		{"a node with its own agent", func(_ *bundletest.Bundle, _ *imageHost, o *InstallOptions) {
			o.Config.Agent = config.Agent{Binary: "/opt/agent"}
		}, "slots run /opt/agent"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			host, sd := bareMachine(t)
			h, made, o := &imageHost{names: map[string]string{}, free: 1 << 40}, newBundle(), InstallOptions{}
			tt.change(&made, h, &o)
			before := filesBelow(t, host.Root)
			_, err := installsBundle(t, host, h, made.Write(t), o, &screen{})
			must.Err(t, err, tt.says)
			untouched(t, host.Root, before)
			must.Equal(t, 0, len(sd.Words())+h.loads+len(h.names))
		})
	}
}

// TestForeignBundle refuses a bundle for another machine.
func TestForeignBundle(t *testing.T) {
	t.Parallel()
	made := bundletest.Good()
	arch := map[string]string{"amd64": "arm64", "arm64": "amd64"}
	made.Manifest = func(m *bundle.Manifest) { m.Arch = arch[m.Arch] }
	own := bundletest.Good().Write(t)
	b, err := OpenOwnBundle(own)
	must.Do(t, err)
	must.Do(t, b.Close())
	made.Image = bundletest.Image(bundletest.Saved(arch[b.Arch], bundle.ImageName)...)
	path := made.Write(t)
	_, err = OpenOwnBundle(path)
	must.Err(t, err, path+" is for "+arch[b.Arch]+", and this machine is "+b.Arch)
	b, err = OpenBundle(path)
	must.Do(t, err)
	must.Do(t, b.Close())
}
