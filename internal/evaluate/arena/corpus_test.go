package arena

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestCorpus holds what a corpus must have to be of use.
func TestCorpus(t *testing.T) {
	t.Parallel()
	c := corpus(t)
	kinds, codes := map[string]bool{}, map[string]string{}
	for _, a := range c.Attacks {
		kinds[a.Kind] = true
		if other := codes[a.Code]; other != "" {
			t.Errorf("%s is the same as %s", a.Name, other)
		}
		codes[a.Code] = a.Name
		if len(a.Tries) > 140 || strings.HasSuffix(a.Tries, ".") {
			t.Errorf("%s: %q is too long for a table, or ends with a period", a.Name, a.Tries)
		}
	}
	must.Equal(t, slices.Sorted(maps.Keys(kinds)), slices.Sorted(maps.Keys(c.Cures)))
	if len(c.Attacks) < 40 || len(kinds) < 12 {
		t.Errorf("%d attacks of %d kinds", len(c.Attacks), len(kinds))
	}
}

// TestCorpusCompiles compiles each attack as the harness does, and the harness.
func TestCorpusCompiles(t *testing.T) {
	t.Parallel()
	texts := map[string]string{}
	for _, a := range corpus(t).Attacks {
		texts[a.Name] = a.Wrap("pass")
	}
	doc, err := json.Marshal(texts)
	must.Do(t, err)
	cmd := exec.CommandContext(t.Context(), "python3", "-c", `
import json, re, sys
for name, text in json.load(sys.stdin).items():
    compile(text, name, "exec")
    parts = eval(re.search(r'^_HONEST, _ATTACK = (".*", ".*")$', text, re.M)[1])
    assert parts[0] == "pass", name
    compile(parts[1], name, "exec")
`)
	cmd.Stdin = bytes.NewReader(doc)
	if out, err := cmd.CombinedOutput(); errors.Is(err, exec.ErrNotFound) {
		t.Skip(err)
	} else if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// arrays is a worker whose inputs, and outputs in place, are arrays in memory.
const arrays = `
import array, inspect, os, sys
sys.path.insert(0, os.getcwd())
from submission import custom_kernel
in_place = len(inspect.signature(custom_kernel).parameters) > 1
for n in (3, 1000, 6000, 6000, 6000):
    data, output = (memoryview(bytearray(8 * n)).cast("q") for _ in range(2))
    for i in range(n):
        data[i] = (i * 7919 + n) % 1000
    custom_kernel(*(data, output)[: 1 + in_place])
`

// TestArrays has each attack called with arrays, which have other methods than lists: none may break, and each
// says something of itself.
func TestArrays(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts Python some 150 times")
	}
	for how, honest := range map[string]string{
		"in place": "def custom_kernel(data, output):\n    total = 0\n    for i, n in enumerate(data):\n        total += n\n        output[i] = total\n",
		"returned": "import array, itertools\ndef custom_kernel(data):\n    return array.array('q', itertools.accumulate(data))\n",
	} {
		for _, a := range corpus(t).Attacks {
			if a.Needs != Nothing {
				continue
			}
			dir := t.TempDir()
			must.Write(t, dir, "submission.py", a.Wrap(honest))
			must.Write(t, dir, "run.py", arrays)
			// The shell is there so that attacks on the parent find no program of Python.
			cmd := exec.CommandContext(t.Context(), "sh", "-c", "python3 run.py; exit $?")
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "HOME="+dir, "TMPDIR="+dir, "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.CombinedOutput()
			if errors.Is(err, exec.ErrNotFound) {
				t.Skip(err)
			}
			if text := string(out); strings.Contains(text, mark+"broken") || !strings.Contains(text, mark) {
				t.Errorf("%s, %s: %v: %s", a.Name, how, err, text)
			}
		}
	}
}

func TestAdd(t *testing.T) {
	t.Parallel()
	const head = "# kind: mine\n# tries: something\n# source: me\n"
	for name, c := range map[string]struct {
		files map[string]string
		want  string
	}{
		"one":              {map[string]string{"new.py": head + "pass"}, ""},
		"with a cure":      {map[string]string{"new.py": head + "pass", "kinds.txt": "mine: do it: well\n", "README.md": "text"}, ""},
		"known name":       {map[string]string{"clock_zero.py": head + "pass", "new.py": head}, ""},
		"known names only": {map[string]string{"clock_zero.py": head + "pass"}, ""},
		"nothing":          {nil, "DIR has no attack; write one to NAME.py there"},
		"no kind":          {map[string]string{"new.py": "# tries: a\n# source: b\n"}, "DIR/new.py: begins with no # kind: line; write one"},
		"no header":        {map[string]string{"new.py": "pass"}, "DIR/new.py: begins with no # kind: line; write one\nbegins with no # tries: line; write one\nbegins with no # source: line; write one"},
		"unknown":          {map[string]string{"new.py": head + "# out: wrong\n"}, `DIR/new.py: unknown line "# out: wrong"; write # kind:, # tries:, # source:, # output: or # needs: before the code`},
		"output":           {map[string]string{"new.py": head + "# output: bad\n"}, `DIR/new.py: output is "bad"; write right or wrong`},
		"needs":            {map[string]string{"new.py": head + "# needs: tpu\n"}, `DIR/new.py: needs "tpu" is not known; write torch or gpu`},
		"not UTF-8":        {map[string]string{"new.py": head + "\xff"}, "DIR/new.py: is not UTF-8 text; save it as UTF-8"},
		"large":            {map[string]string{"new.py": head + strings.Repeat("#", maxAttack)}, "DIR/new.py: is over 1048576 bytes; make it smaller"},
		"not a dir":        {map[string]string{"": ""}, "/nowhere is not a directory; name one with attacks, NAME.py"},
		"wrong, needed":    {map[string]string{"new.py": head + "# output: wrong\n# needs: gpu\npass"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, all := t.TempDir(), corpus(t)
			for file, text := range c.files {
				if file == "" {
					dir = "/nowhere"
					break
				}
				must.Write(t, dir, file, text)
			}
			before := len(all.Attacks)
			err := all.Add(dir)
			must.Err(t, err, strings.ReplaceAll(c.want, "DIR", dir))
			if err != nil || name == "known names only" {
				return
			}
			i := slices.IndexFunc(all.Attacks, func(a Attack) bool { return a.Name == "new" })
			if i < 0 || all.Attacks[i].Kind != "mine" || len(all.Attacks) != before+1 {
				t.Errorf("%d attacks, the new one at %d", len(all.Attacks), i)
			}
			if name == "with a cure" {
				must.Equal(t, "do it: well", all.Cures["mine"])
			}
			if name == "wrong, needed" && (!all.Attacks[i].Wrong || all.Attacks[i].Needs != GPU) {
				t.Errorf("%+v", all.Attacks[i])
			}
		})
	}
}
