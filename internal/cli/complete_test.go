package cli

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestComplete(t *testing.T) {
	t.Parallel()
	const nothing, only, files, dirs = ":4", ":4", ":0", ":16"
	for _, tt := range []struct {
		line string
		want []string // the last one tells the shell what to add
	}{
		{"e2e ", []string{"artifact", "evaluation", "concurrency", only}},
		{"e2e --mode ", []string{"test", "benchmark", "leaderboard", only}},
		{"submit --mode ", []string{"test", "benchmark", "leaderboard", "private", "profile", only}},
		{"pipeline eval --vendor ", []string{"nvidia", "amd", only}},
		{"install --token-file ", []string{files}},
		{"submit --eval ", []string{dirs}},
		{"submit --eval v", []string{"vectoradd_cuda_inline", "vectoradd_triton", only}},
		{"runner --problem x", []string{dirs}},
		{"submit ", []string{files}},
		{"install --queue ", []string{nothing}},
		{"status ", []string{nothing}},
	} {
		r := kbnode(t, append([]string{"__complete"}, strings.Split(tt.line, " ")...)...)
		var got []string
		for line := range strings.Lines(r.out) {
			word, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			got = append(got, word)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || r.code != 0 {
			t.Errorf("%s (exit %d, -want +got):\n%s", tt.line, r.code, diff)
		}
	}
	r := kbnode(t, "__complete", "doctor", "--only", "")
	for _, word := range []string{"\nbuildkite\n", "\ndocker-config\t"} {
		if !strings.Contains(r.out, word) {
			t.Errorf("doctor --only offers no %q:\n%s", word, r.out)
		}
	}
}

func TestLogUnits(t *testing.T) {
	t.Parallel()
	all := []string{"gpu0", "gpu10"}
	of := func(k string) []string {
		return []string{"buildkite-agent-gpu" + k + ".service", "kbnode-guard-gpu" + k + ".service", "buildkite-gpu" + k + ".slice"}
	}
	for _, tt := range []struct {
		has, args, want []string
		err             string
	}{
		{has: all, args: []string{"gpu10"}, want: of("10")},
		{has: all, args: []string{"0"}, want: of("0")},
		{has: all, want: append(append([]string{"kbnode.service"}, of("0")...), of("10")...)},
		{has: all, args: []string{"gpu1"}, err: `this node has no slot "gpu1"; it has gpu0, gpu10`},
		{err: "this machine is not set up as a node"},
	} {
		got, err := logUnits(tt.has, tt.args)
		if diff := cmp.Diff(tt.want, got); diff != "" || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%q: %v, want %q; %s", tt.args, err, tt.err, diff)
		}
	}
}

func TestSlotsOfUnits(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	for _, name := range []string{
		"buildkite-agent-gpu10.service", "buildkite-agent-gpu2.service", "buildkite-agent-gpux.service",
		"kbnode-guard-gpu3.service", "kbnode.service", "buildkite-agent-gpu2.service.d/mine.conf",
	} {
		put(t, root, name, "")
	}
	spell := func(k int) string { return strings.Repeat("i", k) }
	if diff := cmp.Diff([]string{"ii", "iiiiiiiiii"}, slots(root, spell)); diff != "" {
		t.Error(diff)
	}
	if got := slots(root+"/none", spell); got != nil {
		t.Errorf("without units: %q", got)
	}
}
