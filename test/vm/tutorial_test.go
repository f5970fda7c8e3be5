//go:build vm

package vm_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/bktest"
	"github.com/gpu-mode/kbnode/test/doctest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// typed runs a block as a user types it in root's shell: variables that he
// exports stay, and what goes wrong shows.
const typed = `exec 2>&1 </dev/null
[ ! -e /run/typed ] || . /run/typed
trap 'export -p >/run/typed' EXIT
set -eo pipefail
`

// TestTutorial types what docs/lend.md and docs/tutorial.md tell their readers to type,
// each on a machine that has nothing of kbnode but its package, and compares what
// comes with what they say comes. Their make targets are the host's.
func TestTutorial(t *testing.T) {
	t.Parallel()
	t.Run("lend", func(t *testing.T) {
		m := bare(t)
		// Buildkite is not on the internet here. The file is as an earlier kbnode install --endpoint
		// left it.
		m.Put("/etc/kbnode/config.yaml", 0o644, "# Written by kbnode\nagent:\n  endpoint: http://127.0.0.1:8899/v3\n")
		lend := blocks(t, "docs/lend.md")
		// A job comes as soon as the server is a node, because the page ends with giving it back.
		serves := 1 + slices.IndexFunc(lend, func(b doctest.Block) bool { return strings.Contains(b.Text, "kbnode install\n") })
		if serves == 0 {
			t.Fatal("docs/lend.md installs nothing")
		}
		read(t, m, "docs/lend.md", slices.Insert(lend, serves, blocks(t, "docs/pipelines.md")...))
	})
	t.Run("tutorial", func(t *testing.T) {
		read(t, bare(t), "docs/tutorial.md", blocks(t, "docs/tutorial.md"))
	})
}

func bare(t *testing.T) *vm.Machine {
	t.Helper()
	m := vm.Fork(t)
	must.Do(t, m.VM.Bare(t.Context()))
	m.Sh("! command -v kbnode && test ! -e /etc/kbnode && test ! -e /var/lib/kbnode")
	return m
}

func blocks(t *testing.T, page string) []doctest.Block {
	t.Helper()
	text, err := os.ReadFile("../../" + page)
	must.Do(t, err)
	list, err := doctest.Parse(string(text))
	if err != nil || len(list) == 0 {
		t.Fatalf("%s has %d blocks: %v", page, len(list), err)
	}
	return list
}

// read goes through the blocks of a page. A block that does not end as it should ends the
// test, as it would the reading; one that prints something else does not.
func read(t *testing.T, m *vm.Machine, page string, blocks []doctest.Block) {
	t.Helper()
	var until time.Duration // the page's first job
	typedSome, serves := false, false
	for _, b := range blocks {
		began := time.Now()
		switch b.Kind {
		case doctest.Machine:
			typedSome = true
			retype(t, m, page, b)
			took := time.Since(began)
			t.Logf("%s:%d took %.1f s", page, b.Line, took.Seconds())
			if !serves {
				until += took
			}
		case doctest.Job:
			runPage(t, m, b)
			if !serves {
				factor := slowness(t, m)
				t.Logf("%s: from the package to a node that serves: %.0f s emulated, %.1f s by the factor of %.1f", page, until.Seconds(), until.Seconds()/factor, factor)
			}
			serves = true
		}
	}
	if !typedSome {
		t.Fatalf("%s has nothing to type", page)
	}
}

// instead is what is typed in place of what cannot be typed here. Doctor gives up after a
// minute, which on an emulated machine is two seconds. An install without flags asks: script
// gives it a terminal, and the answers.
var instead = strings.NewReplacer(
	"kbnode doctor\n", "kbnode doctor --timeout 10m\n",
	"sudo kbnode install\n", "printf '%s\\n' b200 "+bktest.DefaultAgentToken+" y | script -qec 'sudo kbnode install' /dev/null\n",
)

// retype runs a block, again and again where its reader would.
func retype(t *testing.T, m *vm.Machine, page string, b doctest.Block) {
	t.Helper()
	for deadline := time.Now().Add(m.Limit(vm.Patience)); ; time.Sleep(2 * time.Second) {
		r := m.Run(t.Context(), "bash", "-c", typed+instead.Replace(b.Text))
		differs := ""
		if b.Output != nil {
			differs = doctest.Differ(b.Output.Text, r.Stdout)
		}
		if again := r.Code != b.Exit || differs != ""; again && b.Again && time.Now().Before(deadline) {
			continue
		}
		t.Logf("%s:%d\n%s\n%s", page, b.Line, indent("# ", b.Text), r.Stdout)
		if r.Code != b.Exit {
			t.Fatalf("%s:%d: exit code %d, want %d", page, b.Line, r.Code, b.Exit)
		}
		if differs != "" {
			t.Errorf("%s:%d: %s", page, b.Output.Line, differs)
		}
		return
	}
}

// runPage has a build of a page's pipeline evaluate a submission.
func runPage(t *testing.T, m *vm.Machine, b doctest.Block) {
	t.Helper()
	e := evaluations{m: m}
	m.Put("/root/page.yml", 0o600, b.Text)
	m.Put("/root/page.json", 0o600, string(config(t, "submission.py", nil)))
	build := m.Sh("bkstub submit --queue b200 --steps /root/page.yml --config /root/page.json --env KERNELBOT_IMAGE=kernelbot-test:latest")
	r := e.wait(t, build, "passed")
	e.profiled(t, build, "strict")
	if run := r.Result.Runs["test"].Run; !r.Result.Success || run == nil || !run.Passed {
		t.Errorf("the result is %+v", r.Result)
	}
}

func indent(mark, text string) string {
	return mark + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+mark)
}
