package buildkite

import (
	"cmp"
	"slices"
	"strings"
)

// Near sorts names so that those most like a word come first.
func Near(word string, names []string) []string {
	names = slices.Clone(names)
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(edits(word, a), edits(word, b)), cmp.Compare(a, b))
	})
	return names
}

// edits counts the bytes to add, remove or change (Levenshtein's distance), in any case.
func edits(a, b string) int {
	a, b = strings.ToLower(a), strings.ToLower(b)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0]++
		for j := range len(b) {
			change := last
			if a[i] != b[j] {
				change++
			}
			last = row[j+1]
			row[j+1] = min(change, row[j]+1, last+1)
		}
	}
	return row[len(b)]
}
