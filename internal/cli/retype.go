package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// wideDashes are what chats and documents make of hyphens.
	wideDashes = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d"
	// openQuotes and closeQuotes are what they make of quotes.
	openQuotes, closeQuotes = "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb", "\u201c\u201d\u2018\u2019\u00ab\u00bb"
)

// repairs undo what chats, editors and the shell make of a line. Each returns the words as they were meant.
var repairs = []struct {
	why  string
	undo func([]string) []string
}{
	{"the line has characters that are not visible, as in text that was copied", visibleWords},
	{"a flag begins with two hyphens, and not with the dashes of a document", hyphened},
	{"a quote in the line is none to the shell, as in text that was copied", unquoted},
	{"there is a blank beside a dash or a =", equated},
	{"a file's name with blanks needs quotes", namedFiles},
}

// maxRetyped is how many words a line has at most that people type or paste. The repairs of one from xargs would take hours:
// they look for each sequence of words among the files.
const maxRetyped = 64

// retyped replaces an error about words that no one means.
func (h hints) retyped(err error) error {
	_, isInput := errors.AsType[*config.InputError](err)
	exit, isExit := errors.AsType[*term.ExitError](err)
	if !isInput && !errors.Is(err, fs.ErrNotExist) && (!isExit || exit.Code != term.ExitUsage) {
		return err
	}
	if len(h.Typed) > maxRetyped {
		return h.nearFile(err)
	}
	words, why := h.Typed, ""
	for _, r := range repairs {
		meant := r.undo(slices.Clone(words))
		if why == "" && !slices.Equal(meant, words) {
			why = r.why
		}
		words = meant
	}
	if line := accepted(words); why != "" && line != nil {
		return h.Advise(why, line)
	}
	return h.nearFile(err)
}

// visibleWords removes what does not show, and splits a flag from a value after a blank that is none to the shell.
func visibleWords(words []string) (all []string) {
	wide := func(r rune) bool { return r != ' ' && unicode.Is(unicode.Zs, r) }
	for _, word := range words {
		if isFile(word) { // names in Persian, for example, have such characters
			all = append(all, word)
			continue
		}
		word = strings.Map(func(r rune) rune {
			if r == '\r' || unicode.Is(unicode.Cf, r) {
				return -1
			}
			return r
		}, word)
		if strings.HasPrefix(word, "-") && strings.ContainsFunc(word, wide) {
			all = append(all, strings.FieldsFunc(word, wide)...)
			continue
		}
		all = append(all, strings.Join(strings.FieldsFunc(word, wide), " "))
	}
	return all
}

// hyphened writes the dashes of flags as hyphens.
func hyphened(words []string) []string {
	for i, word := range words {
		name, value, given := strings.Cut(word, "=")
		bare := strings.TrimLeft(name, "-"+wideDashes)
		lead := strings.TrimSuffix(name, bare)
		if bare == "" || !unicode.IsLetter([]rune(bare)[0]) || lead == "" || !strings.ContainsAny(name, wideDashes) && len(lead) < 3 {
			continue
		}
		for _, dash := range wideDashes {
			bare = strings.ReplaceAll(bare, string(dash), "-")
		}
		words[i] = "--" + bare
		if len(bare) == 1 {
			words[i] = "-" + bare
		}
		if given {
			words[i] += "=" + value
		}
	}
	return words
}

// unquoted joins the words between quotes of a document.
func unquoted(words []string) (all []string) {
	for i := 0; i < len(words); i++ {
		name, value := "", words[i]
		if flag, v, given := strings.Cut(value, "="); given && strings.HasPrefix(value, "-") {
			name, value = flag+"=", v
		}
		if strings.TrimLeft(value, openQuotes) != value {
			for end := i; end < len(words); end++ {
				if strings.TrimRight(words[end], closeQuotes) != words[end] {
					inner := strings.Join(append([]string{value}, words[i+1:end+1]...), " ")
					value, i = strings.TrimRight(strings.TrimLeft(inner, openQuotes), closeQuotes), end
					break
				}
			}
		}
		all = append(all, name+value)
	}
	return all
}

// pairFlags have values with a =.
var pairFlags = []string{"--build-arg", "--agent"}

// equated joins what blanks beside a = or after a hyphen have cut: --queue = b200, - --json.
func equated(words []string) (all []string) {
	for i, word := range words {
		before := ""
		if len(all) > 0 {
			before = all[len(all)-1]
		}
		isFlag := strings.HasPrefix(before, "-") && !slices.Contains(pairFlags, before)
		last := i == len(words)-1
		isPair := len(all) > 1 && slices.Contains(pairFlags, all[len(all)-2])
		switch value, cut := strings.CutPrefix(word, "="); {
		case isPair && (cut || strings.HasSuffix(before, "=")) && !strings.HasPrefix(word, "-"):
			all[len(all)-1] = before + word
		case cut && isFlag && !strings.Contains(before, "=") && (value != "" || !last):
			if value != "" {
				all = append(all, value)
			}
		case isFlag && strings.Index(before, "=") == len(before)-1 && !strings.HasPrefix(word, "-"):
			all[len(all)-1] = before + word
		case before == "-" && strings.HasPrefix(word, "-") && !strings.HasPrefix(word, "--"): // a whole flag follows standard input
			all[len(all)-1] = "--" + strings.TrimLeft(word, "-")
		default:
			all = append(all, word)
		}
	}
	return all
}

// namedFiles joins the words of a file's name.
func namedFiles(words []string) (all []string) {
	for i := 0; i < len(words); i++ {
		word := words[i]
		if !strings.HasPrefix(word, "-") && !isFile(word) {
			for end := i + 1; end < len(words) && !strings.HasPrefix(words[end], "-"); end++ {
				if joined := strings.Join(words[i:end+1], " "); isFile(joined) {
					word, i = joined, end
					break
				}
			}
		}
		all = append(all, word)
	}
	return all
}

func isFile(name string) bool {
	_, err := os.Lstat(name)
	return name != "" && err == nil
}

// nearFile names a file that was probably meant by one that was typed and does not exist.
func (h hints) nearFile(err error) error {
	absent, ok := errors.AsType[*text.Absent](err)
	if !ok {
		return err
	}
	i := slices.IndexFunc(h.Typed, func(word string) bool {
		return word == absent.Name || strings.HasPrefix(word, "-") && strings.HasSuffix(word, "="+absent.Name)
	})
	if i < 0 { // it was not typed
		return err
	}
	instead, near := absent.Instead, similarFile(absent.Name)
	if ext := filepath.Ext(near); ext != "" && ext != ".txt" && ext != filepath.Ext(absent.Name) && i > 0 && strings.Contains(h.Typed[i-1]+h.Typed[i], "--token-file") {
		near = "" // a program, or a key of something else
	}
	parts := strings.Split(absent.Name, ",")
	switch {
	case near != "":
		instead = "write " + h.Line(h.With(i, strings.TrimSuffix(h.Typed[i], absent.Name)+near))
	case strings.Contains(absent.Name, "://"):
		instead = "download it first: curl -fLO " + term.Word(absent.Name)
	case absent.Name == "-":
		instead = "no file is read from standard input here; write the name of one"
	case len(parts) > 1 && !slices.ContainsFunc(parts, func(part string) bool { return !isFile(part) }) && accepted(h.With(i, parts...)) != nil:
		instead = "write " + h.Line(h.With(i, parts...))
	}
	says := fmt.Sprintf("%.300s does not exist; %s", text.Line(absent.Name, 300), instead)
	return term.Usagef("%s", strings.Replace(err.Error(), absent.Error(), says, 1))
}

// maxNear is the largest directory that is searched for a similar name.
const maxNear = 10000

// similarFile returns the name of a file that exists, and is like one that does not, or "".
func similarFile(name string) string {
	if rest, ok := strings.CutPrefix(name, "~/"); ok { // which no shell expanded in quotes or after =
		home, _ := os.UserHomeDir()
		if expanded := filepath.Join(home, rest); isFile(expanded) {
			return expanded
		}
	}
	dir, base := filepath.Split(name)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil || len(entries) > maxNear || base == "" {
		return ""
	}
	near, best := "", farthest(base)+1
	for _, e := range entries {
		d := best
		if len(base) > 2 {
			d = text.Edits(e.Name(), base)
		}
		if bare := strings.TrimSuffix(e.Name(), filepath.Ext(e.Name())); strings.EqualFold(bare, base) {
			d = 0 // the extension was left out
		}
		sameKind := d == best && filepath.Ext(e.Name()) == filepath.Ext(base) && filepath.Ext(near) != filepath.Ext(base)
		if (d < best || sameKind && near != "") && text.Plain(e.Name()) {
			near, best = e.Name(), d
		}
	}
	if near == "" {
		return ""
	}
	return dir + near
}
