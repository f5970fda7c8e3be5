package pipeline

import (
	"slices"
	"strings"
)

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
