package job_test

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/job"
)

// optionTable is in docs/pipelines.md.
var optionTable = regexp.MustCompile(`(?m)^\| option of the plugin \|.*\n(\|.*\n)+`)

// TestOptionsPage tests that the documented options are those of the code.
func TestOptionsPage(t *testing.T) {
	t.Parallel()
	const file = "../../docs/pipelines.md"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	want.WriteString("| option of the plugin | | |\n|---|---|---|\n")
	for _, o := range job.Options {
		fmt.Fprintf(&want, "| `%s` | %s | %s |\n", o.Name, o.Verdict, escape(o.Note))
	}
	if *update {
		page = optionTable.ReplaceAllLiteral(page, []byte(want.String()))
		if err := os.WriteFile(file, page, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(want.String(), string(optionTable.Find(page))); diff != "" {
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
		s, err := job.Read(attack(options(fmt.Sprintf(`"image":"a",%q:%s`, o.Name, odd))))
		if o.Name == "image" {
			_, err = job.Read(attack(options(`"image":` + odd)))
		}
		switch o.Verdict {
		case job.Slot:
			if err != nil {
				t.Errorf("%s: %v", o.Name, err)
				continue
			}
			inert(t, read(t, attack(options(`"image":"a"`))), s)
		default:
			refused(t, err, o.Name)
		}
		if o.Verdict == job.Refused {
			for _, none := range []string{`false`, `""`, `[]`, `"off"`, `null`} {
				if _, err := job.Read(attack(options(fmt.Sprintf(`"image":"a",%q:%s`, o.Name, none)))); err != nil {
					t.Errorf("%s: %s is nothing to refuse: %v", o.Name, none, err)
				}
			}
		}
	}
}
