package doctest

import (
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestParse(t *testing.T) {
	t.Parallel()
	page := strings.ReplaceAll(`# A page

Text with 'code'.

'''sh
make me
'''

1. In a list:

   '''sh exit=3
   try it
     harder
   '''

   and then

   '''text output
   it said no
   '''

   which goes on
     with whatever it is indented by.

'''yaml job
steps: []
'''

'''sh host
make test
'''

''''sh again
'''
''''
`, "'''", "```")
	page = strings.ReplaceAll(page, "```'", "````")
	got, err := Parse(page)
	must.Do(t, err)
	want := []Block{
		{Kind: Machine, Line: 5, Text: "make me\n"},
		{Kind: Machine, Line: 11, Text: "try it\n  harder\n", Exit: 3, Output: &Output{18, "it said no\n"}},
		{Kind: Job, Line: 25, Text: "steps: []\n"},
		{Kind: Host, Line: 29, Text: "make test\n"},
		{Kind: Machine, Line: 33, Text: "```\n", Again: true},
	}
	must.Equal(t, want, got)
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for page, want := range map[string]string{
		"```\nls\n```":                          "line 1: nothing runs a block \"\"",
		"a\n\n```bash\nls\n```":                 "line 3: nothing runs a block \"bash\"",
		"```sh hots\nls\n```":                   "nothing runs a block \"sh hots\"",
		"```yaml\na: b\n```":                    "nothing runs a block \"yaml\"",
		"```sh host exit=1\nmake\n```":          "nothing runs a block \"sh host exit=1\"",
		"```sh exit=no\nls\n```":                "\"no\" is no exit code",
		"```sh\nls":                             "line 1: this block has no end",
		"a:\n\n    ls\n":                        "line 3: code that is only indented",
		"```text output\nls\n```":               "line 1: this output has no block above it",
		"```yaml job\n```\n```text output\n```": "line 3: this output has no block above it",
	} {
		if _, err := Parse(page); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q gives %v, want %s", page, err, want)
		}
	}
}

func TestDiffer(t *testing.T) {
	t.Parallel()
	const table = "SLOT  AGENT\ngpu0  idle\ngpu1  busy, 12s\ngpu2  idle\n"
	for _, c := range []struct{ want, got, differs string }{
		{table, table, ""},
		{"SLOT AGENT\n…\ngpu2 idle", table, ""},
		{"…\ngpu1 busy, 3m4s\n…", table, ""},
		{"…\ngpu2 idle", table, ""},
		{"SLOT AGENT\n…", table, ""},
		{"…", "", ""},
		{"", "", ""},
		{"SLOT …\ngpu0 …\n…\ngpu1 …\ngpu2 …", table, ""},
		{"SLOT AGENT\n…\ngpu2 busy", table, `line 3, "gpu2 busy", does not come there`},
		{"SLOT AGENT\ngpu1 idle\n…", table, `line 2, "gpu1 idle", does not come there`},
		{"SLOT AGENT\ngpu0 idle", table, "there is more than the page has"},
		{table + "gpu3 idle", table, `line 5, "gpu3 idle", does not come there`},
		{"…\ngpu1 busy, 12 MiB\n…", table, `line 2, "gpu1 busy, 12 MiB", does not come there`},
		{"gpu0 365 MiB, 2 GiB", "gpu0 358MiB, 1.5 GiB", ""},
		{"said", "", `line 1, "said", does not come there`},
		{"", "said", "there is more than the page has"},
		{"true\ntrue", "true\ntrue\n", ""},
		{"true\ntrue", "true\n", `line 2, "true", does not come there`},
		{"a\n…\n…\nb", "a\nb", ""},
		{"a\n\nb\n", "\na\nb", ""},
		{"2026-01-02 03:04:05 in 1.5 s", "2031-12-30 23:59:59 in 20 s", ""},
		{"job 018f3c1e-0000-7000-8000-0123456789ab", "job 11111111-2222-3333-4444-555555555555", ""},
		{"job 018f3c1e-0000-7000-8000-0123456789ab", "job none", `line 1, "job 018f3c1e-0000-7000-8000-0123456789ab", does not come there`},
		{"8 slots (each)", "7 slots (each)", `line 1, "8 slots (each)", does not come there`},
	} {
		if got := Differ(c.want, c.got); got != c.differs {
			t.Errorf("%q and %q: %q, want %q", c.want, c.got, got, c.differs)
		}
	}
}
