package pipeline

import (
	"cmp"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
)

// dockerPlugin is the version that kernelbot's pipelines name.
const dockerPlugin = "docker#v5.11.0"

// profileVariable asks a node for a profile. It has no effect elsewhere.
const profileVariable = "KBNODE_PROFILE="

// runner evaluates the payload of a build.
const runner = "exec kbnode runner"

// Exit statuses of a job that the command itself never has: kbnode runner exits with 0, 1 or 3,
// even for a submission that is killed.
const (
	agentLost  = -1
	nodeFailed = 255 // kbnode could not run the job, or not upload what it left
)

// infrastructure lists the failures that no submission causes. A job that exceeds its time limit
// has the reason cancel, and would only fail again.
var infrastructure = []Rule{
	{ExitStatus: []int{agentLost}, SignalReason: "none", Limit: 2},
	// A job that a stopped agent ended may have any status, and 1 to 255 does not include -1.
	{ExitStatus: []int{agentLost}, SignalReason: "agent_stop", Limit: 2},
	{SignalReason: "agent_stop", Limit: 2},
	// Nothing of the job ran, and another slot may be fit.
	{ExitStatus: []int{agentLost}, SignalReason: "agent_refused", Limit: 1},
	{ExitStatus: []int{nodeFailed}, SignalReason: "none", Limit: 1},
	// The agent could not start kbnode. A job whose variables are too long for Linux gets it too,
	// and fails once more.
	{ExitStatus: []int{agentLost}, SignalReason: "process_run_error", Limit: 1},
}

// retryComment is written above the rules. Like all comments in the YAML, it has no dollar sign:
// not every reader of YAML recognizes a comment.
const retryComment = `Retry only what no submission can cause: the agent was lost (-1) or stopped,
refused the job before it began, or could not start kbnode; or the node is at fault (255).
The command ends with 0, 1 or 3, whatever was submitted.`

// About says what each kind is for, as the lines of a paragraph.
var About = map[string]string{
	Eval: `Evaluates the submission that a build carries in KERNELBOT_PAYLOAD, or in its
pieces KERNELBOT_PAYLOAD_0, _1, …, in a container with one GPU and the strict profile:
without root, and with write access only to the job's directory and temporary files.
`,
	DockerTest: `Shows what a job's container sees of its node, and fails unless that is one GPU and
the CPUs and memory of its slot. It needs no payload.
`,
	ArtifactTest: `Writes a result.json as a submission without runs would, and uploads it. It runs in the
node's own image, and needs no GPU and no payload.
`,
}

// fill adds what a kind does to a step, and returns a label for it.
func fill(st *Step, kind string, o Options) (label string) {
	evaluated := []string{"result.json", "node.json", "profile_data/**"}
	switch kind {
	case Eval:
		o.Profile = cmp.Or(o.Profile, config.ProfileStrict)
		d := inContainer(o)
		d.Init = new(bool) // the runner is process 1, which no submission can stop or inspect
		st.Command, st.Plugins, st.ArtifactPaths = runner, []Plugin{{dockerPlugin: d}}, evaluated
		return "evaluate"
	case DockerTest:
		st.Command, st.Plugins = escape(dockerScript(o.AMD)), []Plugin{{dockerPlugin: inContainer(o)}}
		return "inspect a container"
	default:
		st.Command, st.ArtifactPaths = escape(artifactScript), []string{"result.json"}
		return "upload an artifact"
	}
}

// inContainer returns the options of the docker plugin. The option gpus is NVIDIA's: Docker
// rejects it without their runtime or CDI. A slot's GPU is passed in any case.
func inContainer(o Options) Docker {
	d := Docker{Image: o.Image, GPUs: "all", PropagateEnvironment: true}
	if d.Image == "" {
		d.Image = ImageVariable
	}
	if o.AMD {
		d.GPUs = ""
	}
	if o.Profile != "" {
		d.Environment = []string{profileVariable + o.Profile}
	}
	return d
}

// Runs reports whether command is a script of a step of this package. None of them reads a file of the
// repository.
func Runs(command string) bool {
	return slices.Contains([]string{strings.TrimSpace(dockerScript(false)), strings.TrimSpace(dockerScript(true)), strings.TrimSpace(artifactScript)}, strings.TrimSpace(command))
}

// escape keeps Buildkite from substituting the shell's variables.
func escape(script string) string { return strings.ReplaceAll(script, "$", "$$") }

// dockerScript runs in any image that has a shell and nproc.
func dockerScript(amd bool) string {
	gpus := "set -- /dev/nvidia[0-9]*\n"
	smi := `if command -v nvidia-smi >/dev/null; then
  nvidia-smi -L
  check nvidia-smi "$(nvidia-smi -L | grep -c '^GPU ')" 1
fi
`
	if amd {
		gpus, smi = "ls -l /dev/kfd\nset -- /dev/dri/renderD*\n", ""
	}
	return `failed=0
check() {
  if [ "$2" = "$3" ]; then echo "ok    $1 $2"; else echo "WRONG $1 $2, not $3"; failed=1; fi
}
echo "slot ${KERNELBOT_GPU_INDEX-unknown: not a node of kbnode}"
` + gpus + `[ -e "$1" ] || set --
echo "devices $*"
check GPUs $# 1
check CPUs "$(nproc)" "${KERNELBOT_CPUS-known}"
check cpuset "$(grep Cpus_allowed_list: /proc/self/status | tr -d '\t' | cut -d: -f2)" "${KERNELBOT_CPUSET-known}"
check memory "$(( $(cat /sys/fs/cgroup/memory.max) / 1048576 ))m" "${KERNELBOT_MEMORY-known}"
` + smi + `exit $failed
`
}

// artifactScript writes what docs/results.md describes.
const artifactScript = `printf '{"success": true, "error": "", "system": {"gpu": "", "device_count": 0, "cpu": "", "runtime": "", "platform": "%s", "torch": "", "hostname": "%s"}, "runs": {}}\n' "$(uname -srm)" "$(uname -n)" >result.json
cat result.json
`
