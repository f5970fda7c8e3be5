package cli

import (
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

// list is a table without lines, for people and for awk. On a terminal it is no wider than the
// terminal. Elsewhere nothing is cut, and each row is one line.
type list struct {
	w      io.Writer
	header []string
	rows   [][]string

	spare []string       // columns to omit on a narrow terminal, first to last
	most  map[string]int // maximum characters of a column's cells on a terminal
	wraps string         // the column whose cells are wrapped between words; "" means the last
}

func newList(w io.Writer, header ...string) *list { return &list{w: w, header: header} }

func (l *list) row(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = spell(l.w, fmt.Sprint(c))
	}
	l.rows = append(l.rows, row)
}

func (l *list) print() {
	width, _ := terminal(l.w)
	_, _ = fmt.Fprintln(l.w, l.draw(width))
}

// draw returns the table in width columns. 0 means no limit.
func (l *list) draw(width int) string {
	if width > 0 {
		l.shorten()
	}
	hidden := make([]bool, len(l.header))
	wide, room := l.measure(hidden)
	at := len(l.header) - 1
	if l.wraps != "" {
		at = slices.Index(l.header, l.wraps)
	}
	word := l.longestWord(at, width)
	for _, title := range l.spare {
		if width == 0 || wide-room[at]+min(room[at], max(roomy, word)) <= width {
			break
		}
		hidden[slices.Index(l.header, title)] = true
		wide, room = l.measure(hidden)
	}

	t := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatUpper
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	t.AppendHeader(visible(l.header, hidden))
	for _, row := range l.rows {
		t.AppendRow(visible(row, hidden))
	}
	if width > 0 && wide > width {
		n := 1
		for _, h := range hidden[:at] {
			if !h {
				n++
			}
		}
		t.SetColumnConfigs([]table.ColumnConfig{{
			Number: n, WidthMax: max(width-(wide-room[at]), roomy/2), WidthMaxEnforcer: wrapCell,
		}})
	}
	return t.Render()
}

// longestWord returns the width of the longest word in a column's cells that fits into width columns,
// such as a UUID or a URL, which no one could copy if it were broken.
func (l *list) longestWord(column, width int) int {
	most := 0
	for _, row := range l.rows {
		for word := range strings.FieldsSeq(row[column]) {
			if n := text.StringWidthWithoutEscSequences(word); n <= width {
				most = max(most, n)
			}
		}
	}
	return most
}

// wrapCell breaks the lines of a cell between words. A word that is wider than the terminal is left to
// the terminal, which breaks it so that it can still be copied.
func wrapCell(s string, width int) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = fold(line, "", width, 0)
	}
	return strings.Join(lines, "\n")
}

func (l *list) shorten() {
	for i, title := range l.header {
		for _, row := range l.rows {
			if most := l.most[title]; most > 0 {
				row[i] = spell(l.w, middle(row[i], most))
			}
		}
	}
}

// middle cuts out the middle of a text: names of agents differ at their ends.
func middle(s string, most int) string {
	r := []rune(s)
	if len(r) <= most {
		return s
	}
	head := (most - 1) / 2
	return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
}

// measure returns the width of the table and of each column.
func (l *list) measure(hidden []bool) (wide int, each []int) {
	each = make([]int, len(l.header))
	for i, title := range l.header {
		if hidden[i] {
			continue
		}
		each[i] = text.StringWidthWithoutEscSequences(title)
		for _, row := range l.rows {
			each[i] = max(each[i], text.LongestLineLen(row[i]))
		}
		wide += each[i] + 2
	}
	return wide - 2, each
}

func visible(cells []string, hidden []bool) table.Row {
	var row table.Row
	for i, c := range cells {
		if !hidden[i] {
			row = append(row, c)
		}
	}
	return row
}
