package installer

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/test/must"
)

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
	text, err := os.ReadFile("../../.goreleaser.yaml")
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
