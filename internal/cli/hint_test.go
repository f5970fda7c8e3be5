package cli

import (
	"path/filepath"
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
		{"image update a b", "write sudo kbnode image update a\n"},
		{"pipeline fast --queue b200", "write kbnode pipeline eval --queue b200\n"},
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
		{"runner submission.py", "write kbnode runner --problem PROBLEM submission.py\n"},
		{"runner ../../examples/prefix_python/wrong.py", "write kbnode runner --problem ../../examples/prefix_python ../../examples/prefix_python/wrong.py\n"},
		{"runner mine.py --mode benchmark --json", "write kbnode runner --problem PROBLEM mine.py --mode benchmark --json\n"},
		{"runner vectoradd_triton", "write kbnode runner --problem vectoradd_triton\n"},
		{"runner ../../examples/identity_cuda", "write kbnode runner --problem ../../examples/identity_cuda\n"},
		{"drain gpu 3", "write sudo kbnode drain 3\n"},
		{"drain gpu3,gpu4 --wait", "write sudo kbnode drain gpu3 gpu4 --wait\n"},
		{"drain gpu0-2", "write sudo kbnode drain gpu0 gpu1 gpu2\n"},
		{"drain 6-gpu7,GPU9", "write sudo kbnode drain gpu6 gpu7 gpu9\n"},
		{"drain gpu0-64", "write slots such as gpu3\n"},
		{"drain gpu3-1", "write slots such as gpu3\n"},
		{"install queue b200", "write sudo kbnode install --queue b200\n"},
		{"doctor preflight", "write sudo kbnode doctor --preflight\n"},
		{"eval --problem prefix_python mine.py", "write kbnode runner --problem prefix_python mine.py\n"},
		{"drain all --wait", "write sudo kbnode drain --all --wait\n"},
		{"undrain GPU_3", "write sudo kbnode undrain gpu3\n"},
		{"logs slot-3 -f", "write sudo kbnode logs gpu3 -f\n"},
		{"drain gpu3 --reason a new fan --wait", "write sudo kbnode drain gpu3 --reason 'a new fan' --wait\n"},
		{"drain --reason=new fan gpu3", "write sudo kbnode drain '--reason=new fan' gpu3\n"},
		{"drain gpu3 fan", `there is no slot "fan"; write slots such as gpu3` + "\n"},
		{"drain —all", "write sudo kbnode drain --all\n"},
		{"image update –check", "write sudo kbnode image update --check\n"},
		{"runner --problem prefix_python mine.py other.py", "write kbnode runner --problem prefix_python mine.py\n"},
		{"runner mine.py mine.py mine.py", "write kbnode runner mine.py\n"},
		{"doctor --only dockr", "no check or group \"dockr\"; write docker\n"},
		{"doctor --skip docker,docker-engin", "write docker-engine\n"},
		{"doctor --explain gpuu", "write gpu\n"},
		{"doctor --explain nonsense", "kbnode doctor --list shows them\n"},
		// Flags.
		{"install --gpu 0-3", "write sudo kbnode install --gpus 0-3\n"},
		{"drain -all", "write sudo kbnode drain --all\n"},
		{"drain gpu3 -r x", "write sudo kbnode drain gpu3 --reason x\n"},
		{"doctor -only docker", "write sudo kbnode doctor --only docker\n"},
		{"drain gpu3 -x", "kbnode drain --help lists the flags\n"},
		{"queue --queue b200", "write kbnode queue b200\n"},
		{"drain --slot=gpu3 --wait", "write sudo kbnode drain gpu3 --wait\n"},
		{"logs --slot gpu3", "write sudo kbnode logs gpu3\n"},
		{"config check --file node.yaml", "write kbnode config check node.yaml\n"},
		{"install --queue", "--queue needs a value: "},
		{"runner --problm prefix_python", "write kbnode runner --problem prefix_python\n"},
		{"runner --eval prefix_python mine.py", "write kbnode runner --problem prefix_python mine.py\n"},
		{"submit --problem=prefix_python mine.py", "write kbnode submit --eval=prefix_python mine.py\n"},
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
		{"queue $(reboot) b200", "write kbnode queue '$(reboot)'\n"},
		{"instal '", `write sudo kbnode install ''\'''` + "\n"},
		{"instal $(reboot)", "write sudo kbnode install '$(reboot)'\n"},
		{"instal \u202eb", "write sudo kbnode install b\n"},
	} {
		got := kbnode(t, strings.Fields(tt.typed)...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, tt.want) {
			t.Errorf("kbnode %s: exit code %d, %q; want 2 and %q", tt.typed, got.code, got.err, tt.want)
		}
	}
}

// TestAdviceForRoot checks that each command that needs root repeats everything that was typed.
func TestAdviceForRoot(t *testing.T) {
	t.Setenv("BUILDKITE_AGENT_TOKEN", "")
	t.Setenv("GPU_TYPE", "")
	file := put(t, t.TempDir(), "buildkite-agent", "")
	quoted := strings.NewReplacer("new fan; it's loud", `'new fan; it'\''s loud'`, "x-{index}", "'x-{index}'")
	for _, args := range [][]string{
		{"install", "--queue", "b200"}, {"install", "--queue=b200", "--gpus", "0,2"}, {"install", "--queue", "x-{index}"}, {"install", "--queue", "b200", "--agent-binary", file},
		{"reconcile"}, {"uninstall", "--now", "--dry-run"}, {"status", "--json"}, {"daemon"},
		{"drain", "gpu3", "--reason", "new fan; it's loud", "--wait"}, {"drain", "--all"}, {"resume", "3", "--mended"}, {"undrain", "gpu3"},
		{"upgrade", "--agent-version", "3.100.0"}, {"selftest", "--slot", "3", "-v"}, {"logs"}, {"logs", "gpu3", "-f"},
		{"doctor"}, {"doctor", "--only", "docker,gpu", "-v"}, {"doctor", "--acceptance", "--json"},
		{"image", "update", "--check"}, {"image", "list"}, {"image", "rollback", "--reason", "slow"}, {"image", "build", "--variant", "cpu"},
	} {
		want := "must run as root; type sudo kbnode " + quoted.Replace(strings.Join(args, " ")) + "\n"
		if got := kbnode(t, args...); got.code != exitNo || got.out != "" || !strings.HasSuffix(got.err, want) {
			t.Errorf("exit code %d, %q; want %q", got.code, got.err, want)
		}
	}
	const pasted = "sudo kbnode drain gpu3 --reason 'a new fan, and a longer one' --wait --timeout 30m"
	if screen := onTerminal(t, 60, "drain", "gpu3", "--reason", "a new fan, and a longer one", "--wait", "--timeout", "30m"); !strings.HasSuffix(screen, "\n  "+pasted+"\n") {
		t.Errorf("the command is cut: %s", screen)
	}
	t.Setenv("BUILDKITE_AGENT_TOKEN", "bkct_secret")
	t.Setenv("GPU_TYPE", "b200")
	want := "type sudo --preserve-env=BUILDKITE_AGENT_TOKEN,GPU_TYPE kbnode install\n"
	if got := kbnode(t, "install"); !strings.HasSuffix(got.err, want) {
		t.Errorf("%q; want %q", got.err, want)
	}
}

// TestUsageBeforeMachine checks that a wrong command line is refused as such, also without root,
// and wherever.
func TestUsageBeforeMachine(t *testing.T) {
	t.Parallel()
	file := put(t, t.TempDir(), "token", "")
	old := put(t, t.TempDir(), "task.json", `{"lang": "cu", "arch": "90a"}`)
	hopper := put(t, t.TempDir(), "task.yml", `{files: [{name: submission.cu, source: "@SUBMISSION@"}], lang: cu, config: {sources: [submission.cu], arch: 90a}}`)
	put(t, filepath.Dir(hopper), "submission.cu", "")
	for typed, want := range map[string]string{
		"drain":                           "no slot is named",
		"drain gpu3 --all":                "leave out gpu3 or --all",
		"drain gpu3 --timeout 5m":         "add --wait",
		"drain gpu3 --wait --timeout=-5m": "cannot be negative",
		"resume gpu-1":                    `there is no slot "gpu-1"`,
		"resume --mended":                 "no slot is named",
		"logs nonsense":                   `there is no slot "nonsense"`,
		"events --since=-2h":              "cannot be negative",
		"install --token-file nofile":     "nofile: no such file or directory; write the token from Buildkite",
		"install --queue a,b":             "--queue:",
		"install --memory-per-slot lots --token-file x": "--memory-per-slot",
		"upgrade": "sudo install -m 755 kbnode /usr/local/bin/kbnode",
		"upgrade --agent-version 3.100.0 --agent-binary x":                 "leave out --agent-version",
		"upgrade --agent-version latest":                                   "write one such as 3.76.2",
		"upgrade --agent-version 3.100.0 --timeout 1ms":                    "too short",
		"image update --auto x:1":                                          "leave out x:1",
		"plan --root . --auto-update @noon":                                `--auto-update: "@noon" has no time of day`,
		"runner --payload a --config -":                                    "--payload and --config each name a payload; give one of them",
		"runner --config=":                                                 "--config names no file; give one, or - for standard input",
		"upgrade --agent-binary nofile":                                    "--agent-binary: nofile does not exist",
		"doctor --bundle " + file:                                          "already exists; choose another name",
		"doctor --bundle /no/dir/bundle.tgz":                               "the directory /no/dir does not exist",
		"selftest --slot=-1":                                               "slots are numbered from 0",
		"image update A:B:C":                                               "A:B:C",
		"image rollback --reason " + strings.Repeat("x", maxDrainReason+1): "write at most",
		"inventory --json --capture x":                                     "--capture and --json cannot be combined",
		"plan --root /nowhere --queue a,b":                                 "--queue:",
		"submit --hello --queue q --result /no/dir/x":                      "the directory /no/dir does not exist",
		"submit mine.py --queue b200":                                      "a submission needs --eval DIR; write kbnode submit --eval PROBLEM mine.py --queue b200",
		"pipeline artifact-test --root /nowhere --timeout x":               "write whole minutes",
		"runner --problem=":                                                "--problem names no problem",
		"runner --problem prefix_python --config x":                        "--config is for jobs",
		"runner --problem prefix_python --workdir /no/dir":                 "there is no directory",
		"runner --problem prefix_python --mode benchmrk":                   `"benchmrk" is not a mode; write benchmark`,
		"runner --problem prefix_python nofile.py":                         "nofile.py does not exist",
		"runner --problem prefix_python /dev/null":                         "/dev/null is not a file",
		"submit --queue q --eval prefix_python /dev/zero":                  "/dev/zero is not a file",
		"submit --queue b200 --payload " + old:                             "the payload's arch: queue b200 is for B200 GPUs with architecture 100",
		"submit --queue test --eval " + filepath.Dir(hopper):               "queue test is for L40S GPUs with architecture 89",
		"runner --mode test":                                               "--mode needs --problem",
		"payload encode --mode test":                                       "--mode needs --problem",
		"submit --queue b200 --gpu H100_BK --hello":                        "queue b200 is for B200 GPUs, and --gpu H100_BK names others",
		"submit --queue b200 --arch 90a --hello":                           "no code for 90a runs",
		"queue --watch":                                                    "--watch needs a terminal",
	} {
		got := kbnode(t, strings.Fields(typed)...)
		if got.code != exitUsage || got.out != "" || !strings.Contains(got.err, want) || strings.Count(got.err, "\n") != 1 {
			t.Errorf("kbnode %s: exit code %d, %q; want 2 and one line with %q", typed, got.code, got.err, want)
		}
	}
}

// TestHintsHideSecrets checks that a secret on the command line, which the process list already
// shows, is not logged too.
func TestHintsHideSecrets(t *testing.T) {
	t.Parallel()
	for typed, want := range map[string]string{
		"install --token bkct_secret":                          "write --token-file FILE",
		"install -token my-secret":                             "write --token-file FILE",
		"install -token=my-secret":                             "kbnode install --help lists the flags",
		"install --token=bkct_secret":                          "write --token-file FILE",
		"install --tok my-secret --queue b200":                 "write --token-file FILE",
		"submit --token my-secret":                             "write --token-file FILE",
		"instal --token my-secret --queue b200":                "write sudo kbnode install --token … --queue b200\n",
		"instal --token=my-secret":                             "write sudo kbnode install --token=…\n",
		"bkct_secret":                                          `unknown command "…"`,
		"install bkct_secret":                                  "write sudo kbnode install --queue …\n",
		"install BUILDKITE_AGENT_TOKEN=my-secret":              `no argument "BUILDKITE_AGENT_TOKEN=…"; write sudo kbnode install`,
		"install --token-file bkct_secret":                     "open …: no such file",
		"statsu --db postgres://kernel:my-secret@db/x":         "postgres://…@db/x",
		"imag build --build-arg HF_TOKEN=my-secret":            "write sudo kbnode image build --build-arg HF_TOKEN=…\n",
		"imag build --build-arg=HF_TOKEN=my-secret":            "write sudo kbnode image build --build-arg=HF_TOKEN=…\n",
		"drain gpu3 --reason bkua_my-secret":                   "type sudo kbnode drain gpu3 --reason …\n",
		"install --queue b200 --endpoint http://u:secret@h/v3": "type sudo kbnode install --queue b200 --endpoint http://…@h/v3\n",
	} {
		got := kbnode(t, strings.Fields(typed)...)
		if got.code == exitDone || strings.Contains(got.out+got.err, "secret") || !strings.Contains(got.err, want) {
			t.Errorf("kbnode %s: exit code %d, %q; want %q", typed, got.code, got.err, want)
		}
	}
}
