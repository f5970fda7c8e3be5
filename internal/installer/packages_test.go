package installer

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// machine returns a machine with NVIDIA GPUs and this software.
func machine(id, version string, with inventory.Software) *inventory.Inventory {
	return &inventory.Inventory{OS: inventory.OS{ID: id, VersionID: version}, NVIDIA: &inventory.NVIDIA{}, Software: with}
}

func TestPackages(t *testing.T) {
	t.Parallel()
	const (
		aptUpdate = "apt-get update"
		apt       = "apt-get install -y --no-install-recommends "
		start     = "systemctl enable --now docker"
		runtime   = "nvidia-ctk runtime configure --runtime=docker"
		reload    = "systemctl reload docker"
		cdi       = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
	)
	engine := inventory.Docker{Version: "29.0.0", CDI: true}
	described := engine
	described.CDIDevices = []string{"nvidia.com/gpu=all"}
	for _, tt := range []struct {
		name    string
		inv     *inventory.Inventory
		manager string
		want    []string
		err     string
	}{
		{name: "nothing missing", inv: machine("debian", "13", inventory.Software{Docker: described, Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4", Toolkit: "/usr/bin/nvidia-ctk"}), manager: "apt-get"},
		{name: "nothing missing, by the runtime", inv: machine("rhel", "9.5", inventory.Software{Docker: inventory.Docker{Version: "20.10", Runtimes: []string{"nvidia"}}, Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4"}), manager: "dnf"},
		{name: "nothing missing and no package manager", inv: machine("arch", "", inventory.Software{Docker: described, Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4"})},
		{name: "no NVIDIA GPU", inv: &inventory.Inventory{Software: inventory.Software{Docker: engine, Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4"}}, manager: "apt-get"},
		{name: "bare Debian 12", inv: machine("debian", "12", inventory.Software{}), manager: "apt-get", want: []string{aptUpdate, apt + "docker.io git e2fsprogs nvidia-container-toolkit", start, runtime, reload}},
		{name: "bare Debian 13", inv: machine("debian", "13", inventory.Software{}), manager: "apt-get", want: []string{aptUpdate, apt + "docker.io docker-cli git e2fsprogs nvidia-container-toolkit", start, runtime, reload}},
		{name: "Debian testing", inv: &inventory.Inventory{OS: inventory.OS{ID: "debian"}, Software: inventory.Software{Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4"}}, manager: "apt-get", want: []string{aptUpdate, apt + "docker.io docker-cli", start}},
		{name: "bare Ubuntu", inv: machine("ubuntu", "24.04", inventory.Software{}), manager: "apt-get", want: []string{aptUpdate, apt + "docker.io git e2fsprogs nvidia-container-toolkit", start, runtime, reload}},
		{name: "bare RHEL", inv: machine("rhel", "9.5", inventory.Software{}), manager: "dnf", want: []string{"dnf install -y docker-ce git e2fsprogs nvidia-container-toolkit", start, runtime, reload}},
		{name: "bare Amazon Linux", inv: machine("amzn", "2023", inventory.Software{}), manager: "dnf", want: []string{"dnf install -y docker git e2fsprogs nvidia-container-toolkit", start, runtime, reload}},
		{name: "Git only", inv: machine("ubuntu", "24.04", inventory.Software{Docker: described, MkfsExt4: "/sbin/mkfs.ext4"}), manager: "apt-get", want: []string{aptUpdate, apt + "git"}},
		{name: "mkfs.ext4 only", inv: machine("fedora", "41", inventory.Software{Docker: described, Git: "/usr/bin/git"}), manager: "dnf", want: []string{"dnf install -y e2fsprogs"}},
		{name: "toolkit only", inv: machine("ubuntu", "24.04", inventory.Software{Docker: engine, Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4"}), manager: "apt-get", want: []string{aptUpdate, apt + "nvidia-container-toolkit", cdi}},
		{name: "GPUs not described to an engine with CDI", inv: machine("arch", "", inventory.Software{Docker: engine, Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4", Toolkit: "/usr/bin/nvidia-ctk"}), want: []string{cdi}},
		{name: "GPUs described to an engine without CDI", inv: machine("debian", "12", inventory.Software{Docker: inventory.Docker{Version: "20.10", CDIDevices: described.CDIDevices}, Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4", Toolkit: "/usr/bin/nvidia-ctk"}), manager: "apt-get", want: []string{runtime, reload}},
		{name: "no package manager", inv: machine("arch", "", inventory.Software{Docker: described, MkfsExt4: "/sbin/mkfs.ext4"}), err: "not installed: git; this machine has neither apt-get nor dnf"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			steps, err := Packages(tt.inv, tt.manager)
			must.Err(t, err, tt.err)
			var got []string
			for _, s := range steps {
				got = append(got, s.String())
				if s.Why == "" {
					t.Errorf("%s does not say why", s)
				}
			}
			must.Equal(t, tt.want, got)
		})
	}
}

func TestRunStopsAtTheFirstThatFails(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	err := Run(t.Context(), []Step{
		{Args: []string{"sh", "-c", "echo one; echo $DEBIAN_FRONTEND"}, Why: "say"},
		{Args: []string{"sh", "-c", "echo two >&2; exit 7"}, Why: "break"},
		{Args: []string{"sh", "-c", "echo three"}, Why: "go on"},
	}, &out)
	if err == nil || !strings.HasPrefix(err.Error(), "break: sh -c ") || !strings.Contains(err.Error(), "exit 7; run it by hand") {
		t.Errorf("%v", err)
	}
	must.Equal(t, "one\nnoninteractive\ntwo\n", out.String())
	must.Err(t, Run(t.Context(), []Step{{Args: []string{"kbnode-no-such-program"}, Why: "start"}}, &out), "start: ")
}
