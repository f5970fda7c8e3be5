package image

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestBehind runs the script with stand-ins for the programs that it asks.
func TestBehind(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must.Write(t, dir, "behind.sh", must.Read(t, "behind.sh"))
	must.Write(t, dir, "pins.txt", `# a comment
cpu  BASE  debian:13.4-slim  image

rocm TORCH_INDEX_URL https://index.example/rocm -
rocm TORCH_VERSION 2.10.0+rocm7.1 pip:torch
cuda TORCH_VERSION 2.12.0 pip:torch
cuda nvidia cuda-python[all]==13.0 pip
cuda nvidia gone==1.0 pip
cuda CUTLASS_VERSION v4.5.2 git:https://git.example/cutlass
`)
	for name, text := range map[string]string{
		"pip": `case "$*" in
"index versions --index-url https://index.example/rocm torch") echo "torch (2.11.0+rocm7.1)"; echo "Available versions: 2.11.0+rocm7.1, 2.10.0+rocm7.1" ;;
"index versions torch") echo "Available versions: 2.12.0, 2.9.1" ;;
"index versions cuda-python") echo "Available versions: 13.4.4, 13.0" ;;
*) exit 1 ;;
esac`,
		"skopeo": `[ "$*" = "list-tags docker://debian" ] && printf '{"Tags": [\n    "13.10-slim",\n    "13.4-slim",\n    "13.9-slim",\n    "14.0",\n    "sid-slim"\n]}\n'`,
		"git":    `[ "$*" = "ls-remote --tags --refs https://git.example/cutlass" ] && printf '1\trefs/tags/v4.10.0\n2\trefs/tags/v4.5.2\n3\trefs/tags/v5.0.0-rc\n'`,
	} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/bash\n"+text+"\n"), 0o755))
	}
	run := func() (string, int) {
		cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(dir, "behind.sh"))
		cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH")}
		out, err := cmd.Output()
		if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
			t.Fatal(err)
		}
		var lines []string
		for line := range strings.Lines(string(out)) {
			lines = append(lines, strings.Join(strings.Fields(line), " "))
		}
		return strings.Join(lines, "\n"), cmd.ProcessState.ExitCode()
	}
	out, code := run()
	must.Equal(t, `IMAGE WHAT HERE NEWEST
cpu debian 13.4-slim 13.10-slim behind
rocm TORCH_INDEX_URL https://index.example/ ? not known: look yourself
rocm TORCH_VERSION 2.10.0+rocm7.1 2.11.0+rocm7.1 behind
cuda TORCH_VERSION 2.12.0 2.12.0
cuda cuda-python[all] 13.0 13.4.4 behind
cuda gone 1.0 ? not known: look yourself
cuda CUTLASS_VERSION v4.5.2 v4.10.0 behind`, out)
	must.Equal(t, 1, code)
	must.Write(t, dir, "pins.txt", "cuda TORCH_VERSION 2.12.0 pip:torch\n")
	if out, code := run(); code != 0 {
		t.Errorf("nothing is behind, but it ends with %d:\n%s", code, out)
	}
}
