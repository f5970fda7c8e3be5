package health

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestDocument compares docs/health.md with the checks and the table of Xids.
func TestDocument(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/health.md")
	must.Do(t, err)
	var rows []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+\\.[a-z]+)` \\|").FindAllStringSubmatch(string(page), -1) {
		rows = append(rows, m[1])
	}
	must.Equal(t, slices.Sorted(slices.Values(Checks)), slices.Sorted(slices.Values(rows)))
	want, got := map[string]string{}, map[string]string{}
	for number := range XidLast + 1 {
		class := LookupXid(number).Class
		want[string(class)] = list(class)
	}
	want[string(XidUnknown)] = "all others"
	_, table, _ := strings.Cut(string(page), "\n## Xids\n")
	table, _, _ = strings.Cut(table, "\n## ")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z]+)` \\| ([^|]*) \\|").FindAllStringSubmatch(table, -1) {
		got[m[1]] = m[2]
	}
	must.Equal(t, want, got)
	for i, name := range levels {
		if i > 0 && !strings.Contains(string(page), "| `"+name+"` |") {
			t.Errorf("no row for the level %s", name)
		}
	}
}

// list returns the Xids of a class: "31-32, 45".
func list(class XidClass) string {
	var parts []string
	inClass := func(number int) bool { return LookupXid(number).Class == class }
	for i := 0; i <= XidLast; i++ {
		if !inClass(i) {
			continue
		}
		from := i
		for inClass(i + 1) {
			i++
		}
		part := strconv.Itoa(from)
		if i > from {
			part = fmt.Sprintf("%d-%d", from, i)
		}
		parts = append(parts, part)
	}
	return strings.Join(parts, ", ")
}
