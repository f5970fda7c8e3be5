package installer

import (
	"context"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

// machine returns a machine with NVIDIA GPUs and this software.
func machine(id, version string, with inventory.Software) *inventory.Inventory {
	return &inventory.Inventory{OS: inventory.OS{ID: id, VersionID: version}, NVIDIA: &inventory.NVIDIA{}, Software: with}
}

// silent adds to a machine an installed Docker that does not answer.
func silent(inv *inventory.Inventory) *inventory.Inventory {
	inv.Software.Docker = inventory.Docker{}
	inv.Problems = append(inv.Problems, inventory.Problem{Subject: inventory.SubjectDocker, Detail: "connection refused"})
	return inv
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
		{name: "Docker does not answer", inv: silent(machine("ubuntu", "24.04", inventory.Software{Git: "/usr/bin/git", MkfsExt4: "/sbin/mkfs.ext4"})), manager: "apt-get", want: []string{"systemctl enable --now docker"}},
		{name: "Docker does not answer, and no git", inv: silent(machine("rhel", "9.5", inventory.Software{MkfsExt4: "/sbin/mkfs.ext4"})), manager: "dnf", want: []string{"dnf install -y git", "systemctl enable --now docker"}},
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

// writer is a function that takes what is written.
type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// TestRunInterrupted checks that a step can finish its work, as apt does with a package, and that
// no other follows.
func TestRunInterrupted(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out strings.Builder
	err := Run(ctx, []Step{
		{Args: []string{"sh", "-c", "trap 'echo finished; exit 0' INT; echo begun; while :; do sleep 0.01; done"}, Why: "install git"},
		{Args: []string{"echo", "next"}, Why: "go on"},
	}, writer(func(p []byte) (int, error) {
		cancel()
		return out.Write(p)
	}))
	must.Err(t, err, "install git: interrupted; run kbnode install again")
	must.Equal(t, "begun\nfinished\n", out.String())
}

func TestCommand(t *testing.T) {
	t.Parallel()
	const apt, dnf = "apt-get update && apt-get install -y ", "dnf install -y "
	for _, tt := range []struct {
		program     Prerequisite
		id, version string
		want        string
	}{
		{Docker, "debian", "12", apt + "docker.io && systemctl enable --now docker"},
		{Docker, "debian", "13", apt + "docker.io docker-cli && systemctl enable --now docker"},
		{Docker, "debian", "", apt + "docker.io docker-cli && systemctl enable --now docker"}, // testing
		{Docker, "ubuntu", "24.04", apt + "docker.io && systemctl enable --now docker"},
		{Docker, "rocky", "9.5", dnf + "docker-ce && systemctl enable --now docker"},
		{Docker, "amzn", "2023", dnf + "docker && systemctl enable --now docker"},
		{Cron, "ubuntu", "24.04", apt + "cron && systemctl enable --now cron"},
		{Cron, "fedora", "41", dnf + "cronie && systemctl enable --now crond"},
		{MkfsExt4, "rhel", "9.5", dnf + "e2fsprogs"},
	} {
		if got := tt.program.Command(inventory.OS{ID: tt.id, VersionID: tt.version}); got != tt.want {
			t.Errorf("%s %s: %q; want %q", tt.id, tt.version, got, tt.want)
		}
	}
}

// TestPackagesSuggest compares what the .deb and the .rpm recommend and suggest with the table.
func TestPackagesSuggest(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../../.goreleaser.yaml")
	must.Do(t, err)
	var conf struct {
		NFPMs []struct {
			Recommends []string
			Overrides  map[string]struct{ Suggests []string }
		}
	}
	if err := yaml.Unmarshal(text, &conf); err != nil || len(conf.NFPMs) != 1 {
		t.Fatal(err, conf)
	}
	alternative := regexp.MustCompile(` *(\(.*|\|.*)`)
	for format, bare := range map[string]*inventory.Inventory{"deb": machine("debian", "13", inventory.Software{}), "rpm": machine("rhel", "9.5", inventory.Software{})} {
		steps, err := Packages(bare, map[string]string{"deb": "apt-get", "rpm": "dnf"}[format])
		must.Do(t, err)
		i := slices.IndexFunc(steps, func(s Step) bool { return strings.HasPrefix(s.Why, "install ") })
		want := strings.Split(strings.TrimPrefix(steps[i].Why, "install "), ", ")
		var got []string
		for _, name := range slices.Concat(conf.NFPMs[0].Recommends, conf.NFPMs[0].Overrides[format].Suggests) {
			if name != "ca-certificates" { // for kbnode itself
				got = append(got, alternative.ReplaceAllString(name, ""))
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", format, diff)
		}
	}
}

func TestPreflight(t *testing.T) {
	t.Parallel()
	good := func() *inventory.Inventory {
		return machine("debian", "12", inventory.Software{Systemd: "257", CgroupV2: true, Git: "/usr/bin/git", MkfsExt4: "/usr/sbin/mkfs.ext4", Docker: inventory.Docker{Version: "26.1", CgroupDriver: "systemd", Runtimes: []string{"nvidia"}}})
	}
	if m := Preflight(good()); len(m) > 0 {
		t.Errorf("a good machine lacks %v", m)
	}
	for name, tt := range map[string]struct {
		spoil func(*inventory.Inventory)
		want  string
	}{
		"no systemd":      {func(i *inventory.Inventory) { i.Software.Systemd = "" }, "systemd does not report its version"},
		"old systemd":     {func(i *inventory.Inventory) { i.Software.Systemd = "245.4-4ubuntu3" }, "needs 249"},
		"cgroup v1":       {func(i *inventory.Inventory) { i.Software.CgroupV2 = false }, "systemd.unified_cgroup_hierarchy=1"},
		"no Docker":       {func(i *inventory.Inventory) { i.Software.Docker = inventory.Docker{} }, "sudo apt-get update && sudo apt-get install -y docker.io && sudo systemctl enable --now docker (or kbnode"},
		"no Docker, RHEL": {func(i *inventory.Inventory) { i.Software.Docker = inventory.Docker{}; i.OS.ID = "rhel" }, "run: sudo dnf install -y docker-ce"},
		"Docker silent":   {func(i *inventory.Inventory) { silent(i) }, "Docker does not answer (connection refused); run: sudo systemctl enable --now docker (or kbnode"},
		"cgroupfs":        {func(i *inventory.Inventory) { i.Software.Docker.CgroupDriver = "cgroupfs" }, "native.cgroupdriver=systemd"},
		"no git":          {func(i *inventory.Inventory) { i.Software.Git = "" }, "apt-get install -y git"},
		"no mkfs":         {func(i *inventory.Inventory) { i.Software.MkfsExt4 = "" }, "apt-get install -y e2fsprogs"},
		"no toolkit":      {func(i *inventory.Inventory) { i.Software.Docker.Runtimes = nil }, "nvidia-container-toolkit"},
	} {
		inv := good()
		tt.spoil(inv)
		if m := Preflight(inv); len(m) != 1 || !strings.Contains(m[0], tt.want) {
			t.Errorf("%s: %v, want one sentence with %q", name, m, tt.want)
		}
		if final := name == "old systemd" || name == "cgroup v1"; len(Unfit(inv)) > 0 != final {
			t.Errorf("%s: trying again is of no use: %v, want %v", name, !final, final)
		}
	}
}
