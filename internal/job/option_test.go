package job_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
)

// optionTables are in docs/pipelines.md, one for each verdict.
var optionTables = regexp.MustCompile(`(?m)^\| taken \|.*\n((\|.*)?\n)*\|.*\n`)

// TestOptionsPage tests that the documented options are those of the code.
func TestOptionsPage(t *testing.T) {
	t.Parallel()
	const file = "../../docs/pipelines.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for i, o := range job.Options {
		switch {
		case i == 0:
			fmt.Fprintf(&want, "| %s | |\n|---|---|\n", o.Verdict)
		case o.Verdict != job.Options[i-1].Verdict:
			fmt.Fprintf(&want, "\n| %s | |\n|---|---|\n", o.Verdict)
		}
		names := "`" + strings.ReplaceAll(o.Names, " ", "`, `") + "`"
		fmt.Fprintf(&want, "| %s | %s |\n", names, escape(o.Note))
	}
	if *update {
		page = optionTables.ReplaceAllLiteral(page, []byte(want.String()))
		if err := os.WriteFile(file, page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.String(), string(optionTables.Find(page))); diff != "" {
		t.Errorf("write it again with -update: %s", diff)
	}
}

// escape keeps Markdown from reading stars and placeholders.
func escape(note string) string {
	return regexp.MustCompile(`\S*[*_$<{]\S*[^\s,.;:]|\S*\*`).ReplaceAllString(note, "`$0`")
}

// TestOptions tests that each option has the effect that the table says.
func TestOptions(t *testing.T) {
	t.Parallel()
	// A value of another type is refused by what reads it, and of no interest to what does not.
	odd := `{"a":[{"b":1}]}`
	for _, o := range job.Options {
		for name := range strings.FieldsSeq(o.Names) {
			s, err := job.Read(attack(with(name, odd)))
			if o.Verdict != job.Slot {
				refused(t, err, name)
			} else if err != nil {
				t.Errorf("%s: %v", name, err)
			} else {
				inert(t, read(t, attack(jobtest.Options(`"image":"a"`))), s)
			}
			if o.Verdict == job.Refused {
				for _, none := range []string{`false`, `""`, `[]`, `"off"`, `null`} {
					if _, err := job.Read(attack(with(name, none))); err != nil {
						t.Errorf("%s: %s is nothing to refuse: %v", name, none, err)
					}
				}
			}
		}
	}
}

// with is a step with an option, and an image.
func with(name, value string) map[string]string {
	if name == "image" {
		return jobtest.Options(`"image":` + value)
	}
	return jobtest.Options(fmt.Sprintf(`"image":"a",%q:%s`, name, value))
}
