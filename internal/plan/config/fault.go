package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/internal/std/yamlfile"
)

// quoted formats a word of the file, truncated for a message.
func quoted(s string) string { return fmt.Sprintf("%.80q", s) }

var yamlType = lazy.Regexp("(?s)^cannot unmarshal !!(\\w+)(?: `(.*)`)? into (\\S+)$")

// decodeFaults records the faults in an error of the YAML library.
func (r *reader) decodeFaults(err error) {
	if err == nil {
		return
	}
	messages := []string{err.Error()}
	if te, ok := errors.AsType[*yaml.TypeError](err); ok {
		messages = te.Errors
	}
	for _, msg := range messages {
		line, text := yamlfile.Line(msg)
		if t := yamlType().FindStringSubmatch(text); t != nil {
			text = quoted(t[2]) + " is not " + kindName(t[3])
			if t[2] == "" {
				text = "this is not " + kindName(t[3])
			}
		}
		r.Add(line, "%s", text)
	}
}

func kindName(goType string) string {
	switch {
	case strings.HasPrefix(goType, "int"):
		return "a whole number; write one such as 8"
	case goType == "bool":
		return "true or false; write one of them"
	case goType == "string":
		return "a string; write one, in quotes if YAML reads it as something else"
	case strings.HasPrefix(goType, "[]"), goType == "config.Patterns":
		return "a list; write one such as [a, b]"
	default:
		return "a group of keys; write KEY: VALUE in a line for each"
	}
}

// suggestion is evaluated only for a fault that is kept.
type suggestion struct {
	key    string
	known  []string
	prefix string // of the group
}

// String names the key that was probably meant, or else all known keys.
func (s suggestion) String() string {
	key := s.key
	if inner := innerOf(key); inner != "" {
		return inner
	}
	if i := slices.IndexFunc(s.known, func(k string) bool { return flat(k) == flat(key) || variables[k] == key }); i >= 0 {
		return fmt.Sprintf("write %q", s.known[i])
	}
	place := placeOf(key, s.prefix)
	akin := text.Akin(key, s.known)
	if name := sameKeys[key]; s.prefix == "" && name != "" {
		akin = []string{name}
	}
	if place != "" && (s.prefix != "" || akin == nil) {
		return place
	}
	if akin != nil {
		says := "write " + quotedList(akin)
		if place != "" {
			says += ", or " + place
		}
		return says
	}
	for _, is := range []func(k string) bool{
		func(k string) bool { return len(key) > 2 && text.Edits(flat(k), flat(key)) == 1 },
		func(k string) bool {
			return len(key) > 3 && (strings.HasPrefix(flat(k), flat(key)) || strings.HasPrefix(flat(key), flat(k)))
		},
	} {
		if i := slices.IndexFunc(s.known, is); i >= 0 {
			return fmt.Sprintf("write %q", s.known[i])
		}
	}
	if strings.Contains(strings.ToLower(key), "token") {
		return "a token is no setting; write it to a file, and sudo kbnode install --token-file FILE"
	}
	if key == "version" {
		return "the agent's is that of sudo kbnode upgrade --agent-version VERSION"
	}
	return "use one of " + strings.Join(slices.Sorted(slices.Values(s.known)), ", ")
}

// sameKeys are other tools' words for a key.
var sameKeys = map[string]string{"name": "node", "hostname": "node", "host": "node"}

// quotedList returns quoted keys, with or between them.
func quotedList(keys []string) string {
	var all []string
	for _, k := range keys {
		all = append(all, strconv.Quote(k))
	}
	return strings.Join(all, " or ")
}

// flat returns a key as it is compared with another: people write it with other separators, and documents with their own
// dashes and quotes.
func flat(key string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsLetter(r) || unicode.IsDigit(r) {
			return unicode.ToLower(r)
		}
		return -1
	}, key)
}

// InputError means that the user has to change what was given: the configuration file, a variable
// or a flag.
type InputError struct{ Err error }

func (e *InputError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *InputError) Unwrap() error { return e.Err }

// BadInput returns an InputError.
func BadInput(format string, args ...any) error { return &InputError{fmt.Errorf(format, args...)} }
