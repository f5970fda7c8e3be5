package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/vm"
)

// installCommand is what a vendor's engineer types, and where the stand-in is.
const installCommand = "BUILDKITE_AGENT_TOKEN=" + bktest.DefaultAgentToken +
	" kbnode install --queue b200 --endpoint http://127.0.0.1:8899/v3"

// submitCommand sends the built-in submission, as who has a token for Buildkite's REST API does.
const submitCommand = "BUILDKITE_API_URL=http://127.0.0.1:8899 BUILDKITE_ORG=kbnode BUILDKITE_API_TOKEN=" + bktest.DefaultAPIToken +
	" kbnode submit --queue b200 --hello"

// demoSteps are what demo does; demo.sh prints and does the first two.
var demoSteps = []struct{ title, command string }{
	{"[3/6] look at the server, with eight simulated GPUs (a few seconds)", "kbnode inventory"},
	{"[4/6] make it a node with eight slots (about 2 min)", installCommand},
	{"[5/6] run a job that evaluates a kernel, and show its result (about 1 min)", submitCommand},
	{"[6/6] look at the slots (a few seconds)", "kbnode status"},
}

// tokens hides those of the stand-in, which look like secrets.
var tokens = strings.NewReplacer(bktest.DefaultAgentToken, "…", bktest.DefaultAPIToken, "…")

const demoGPU = "NVIDIA B200"

// demo is the whole way of one job. It ends with an error unless the result names a simulated GPU.
func demo(ctx context.Context, m *vm.VM) (int, error) {
	for _, s := range demoSteps {
		began := time.Now()
		fmt.Printf("\n%s\n      # %s\n", s.title, tokens.Replace(s.command))
		var out bytes.Buffer
		code, err := m.Stream(ctx, io.MultiWriter(os.Stdout, &out), os.Stderr, "bash", "-c", s.command)
		if err == nil && code != 0 {
			err = fmt.Errorf("exit code %d", code)
		}
		if err == nil && s.command == submitCommand && !strings.Contains(out.String(), "on "+demoGPU) {
			err = errors.New("the job's result names no " + demoGPU)
		}
		if err != nil {
			return 1, fmt.Errorf("the step %q was not successful: %w", s.title, err)
		}
		fmt.Printf("      %.0f s\n", time.Since(began).Seconds())
	}
	fmt.Print(`
A server became a node, and a job ran on one of its GPUs. Next:
  make vm-shell       a prompt on such a node: try sudo kbnode doctor, kbnode drain gpu3, sim-gpu lose 5
  docs/tutorial.md    the same by hand, and what to do if something breaks
  README.md           how to lend a server of your own
`)
	return 0, nil
}
