package term

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// roomy is the minimum width, in characters, of a column of sentences. Other columns give way to
// it.
const roomy = 30

// List is a table without lines, for people and for awk. On a terminal it is no wider than the
// terminal. Elsewhere nothing is cut, and each row is one line.
type List struct {
	w      io.Writer
	header []string
	Rows   [][]string

	Spare []string       // columns to omit on a narrow terminal, first to last
	Most  map[string]int // maximum characters of a column's cells on a narrow terminal
	Wraps string         // the column whose cells are wrapped between words; "" means the last
}

// NewList returns an empty table.
func NewList(w io.Writer, header ...string) *List { return &List{w: w, header: header} }

// Row adds a row.
func (l *List) Row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = fmt.Sprint(c)
	}
	l.Rows = append(l.Rows, row)
}

// Print writes the table.
func (l *List) Print() {
	width, _ := Terminal(l.w)
	_, _ = fmt.Fprintln(l.w, l.Draw(width))
}

// Draw returns the table in width columns. 0 means no limit.
func (l *List) Draw(width int) string {
	if width == 0 {
		return l.render(nil, 0)
	}
	if text.LongestLineLen(l.render(nil, 0)) <= width {
		return l.render(nil, 0)
	}
	for i, title := range l.header {
		for _, row := range l.Rows {
			row[i] = middle(row[i], l.Most[title])
		}
	}
	longest, word := l.wrapped(width)
	hidden := 0
	for hidden < len(l.Spare) && text.LongestLineLen(l.render(l.Spare[:hidden], max(roomy, word))) > width {
		hidden++
	}
	all := l.render(l.Spare[:hidden], 0)
	if over := text.LongestLineLen(all) - width; over > 0 {
		return l.render(l.Spare[:hidden], max(longest-over, roomy/2))
	}
	return all
}

// render returns the table without the hidden columns. most is the width of the wrapped column, or 0.
func (l *List) render(hidden []string, most int) string {
	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	configs := []table.ColumnConfig{{Number: l.wrappedColumn() + 1, WidthMax: most, WidthMaxEnforcer: wrapCell}}
	for _, title := range hidden {
		configs = append(configs, table.ColumnConfig{Name: title, Hidden: true})
	}
	t.SetColumnConfigs(configs)
	t.AppendHeader(cells(l.header))
	for _, row := range l.Rows {
		t.AppendRow(cells(row))
	}
	return t.Render()
}

func (l *List) wrappedColumn() int {
	return slices.Index(l.header, cmp.Or(l.Wraps, l.header[len(l.header)-1]))
}

// wrapped returns the width of the wrapped column, and of its longest word that fits into width
// columns, such as a UUID or a URL, which no one could copy if it were broken.
func (l *List) wrapped(width int) (longest, word int) {
	for _, row := range l.Rows {
		cell := row[l.wrappedColumn()]
		longest = max(longest, text.LongestLineLen(cell))
		for w := range strings.FieldsSeq(cell) {
			if n := text.StringWidthWithoutEscSequences(w); n <= width {
				word = max(word, n)
			}
		}
	}
	return longest, word
}

// wrapCell breaks the lines of a cell between words. A word that is wider than the terminal is left to
// the terminal, which breaks it so that it can still be copied.
func wrapCell(s string, width int) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Fold(line, width, 0)
	}
	return strings.Join(lines, "\n")
}

// middle cuts out the middle of a text: names of agents differ at their ends. 0 means no limit.
func middle(s string, most int) string {
	r := []rune(s)
	if most == 0 || len(r) <= most {
		return s
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}

func cells(words []string) table.Row {
	var row table.Row
	for _, w := range words {
		row = append(row, w)
	}
	return row
}
