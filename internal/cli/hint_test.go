package cli

import (
	"strings"
	"testing"
)

func TestHints(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ typed, want string }{
		// Commands.
		{"undran gpu3", "write sudo kbnode resume gpu3\n"},
		{"uninstal", "write sudo kbnode uninstall\n"},
		{"uinstall", "write sudo kbnode install, or sudo kbnode uninstall\n"}, // opposites, equally near
		{"instal --queue b200", "write sudo kbnode install --queue b200\n"},
		{"instal --queue=b200 --yes", "write sudo kbnode install --queue=b200 --yes\n"},
		{"drian gpu3", "write sudo kbnode drain gpu3\n"},
		{"cordon gpu3", "write sudo kbnode drain gpu3\n"},
		{"uncordon --all", "write sudo kbnode resume --all\n"},
		{"statsu --json", "write sudo kbnode status --json\n"},
		{"reconsile", "write sudo kbnode reconcile\n"},
		{"queu b200", "write kbnode queue b200\n"},
		{"config chek node.yaml", "write kbnode config check node.yaml\n"},
		{"image updat", "write sudo kbnode image update\n"},
		{"pipeline --queue q artefact-test", "write kbnode pipeline --queue q artifact-test\n"},
		{"payload decod", "write kbnode payload decode\n"},
		{"help statsu", "write kbnode help status\n"},
		{"help image updat", "write kbnode help image update\n"},
		{"completion tcsh", "it has bash, fish, powershell, zsh\n"},
		{"nonsense", "kbnode --help lists the commands\n"},
		// Arguments.
		{"install b200", "write sudo kbnode install --queue b200\n"},
		{"install b200 --queue h100", "write sudo kbnode install --queue h100\n"},
		{"plan b200", "write kbnode plan --queue b200\n"},
		{"upgrade 3.100.0", "write sudo kbnode upgrade --agent-version 3.100.0\n"},
		{"doctor gpu", "write sudo kbnode doctor --only gpu\n"},
		{"selftest gpu3", "write sudo kbnode selftest --slot 3\n"},
		{"events gpu3", "write kbnode events --slot gpu3\n"},
		{"status gpu3", "write sudo kbnode status\n"},
		{"image list x", "write sudo kbnode image list\n"},
		// Flags.
		{"status --jsn", "write sudo kbnode status --json\n"},
		{"drain gpu3 --resaon x", "write sudo kbnode drain gpu3 --reason x\n"},
		{"install --qeue=b200", "write sudo kbnode install --queue=b200\n"},
		{"plan --slices 3", "kbnode plan --help lists the flags\n"},
		// Values.
		{"events --since 1d", "write kbnode events --since 24h\n"},
		{"events --since=2w", "write kbnode events --since=336h\n"},
		{"doctor --timeout 5", "write sudo kbnode doctor --timeout 5m\n"},
		{"drain gpu3 --wait --timeout x", "\"x\" is not a time such as 90s, 30m or 2h"},
		{"status --watch=5", "write sudo kbnode status --watch\n"},
		{"selftest --slot gpu3", "write sudo kbnode selftest --slot 3\n"},
		{"selftest --slot all", "\"all\" is not a number"},
		{"events --slot gpux", "write gpu3, or node for"},
		{"queue $(reboot) b200", "see kbnode queue --help\n"},
		{"instal '", `write sudo kbnode install ''\'''` + "\n"},
		{"instal \u202eb", "write sudo kbnode install b\n"},
	} {
		got := kbnode(t, strings.Fields(tt.typed)...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, tt.want) {
			t.Errorf("kbnode %s: exit code %d, %q; want 2 and %q", tt.typed, got.code, got.err, tt.want)
		}
	}
}

// TestHintsHideTokens checks that a token on the command line, which the process list already
// shows, is not logged too.
func TestHintsHideTokens(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"install", "--token", "bkct_secret"}, {"install", "--token=bkct_secret"}, {"submit", "--token", "bkct_secret"},
	} {
		got := kbnode(t, args...)
		if got.code != exitUsage || strings.Contains(got.err, "secret") || !strings.Contains(got.err, "write --token-file FILE") {
			t.Errorf("kbnode %q: exit code %d, %q", args, got.code, got.err)
		}
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	if flag, command := kbnode(t, "--version"), kbnode(t, "version"); flag != command || flag.code != exitDone {
		t.Errorf("kbnode --version: %+v; kbnode version: %+v", flag, command)
	}
}
