package guard

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// rule judges the value of one field: it takes it into the new request, leaves it out, or
// returns a sentence that says why not.
type rule func(v any) error

// judge checks an object against its rules, with the keys sorted so that the answer to a request
// is always the same. It refuses a key that differs only in case from a known one, since the
// engine would take it for that one. An unknown key may only have a zero value.
func judge(v any, rules map[string]rule) error {
	if v == nil {
		return nil
	}
	obj, ok := v.(map[string]any)
	if !ok {
		return errors.New("not an object; write one")
	}
	var found faults
	for _, key := range slices.Sorted(maps.Keys(obj)) {
		known, ok := rules[key]
		switch {
		case ok:
			err := known(obj[key])
			if inner, ok := errors.AsType[faults](err); ok {
				for _, f := range inner {
					found = append(found, key+"."+f)
				}
			} else if err != nil {
				found = append(found, key+": "+err.Error())
			}
		case variant(key, rules) != "":
			found = append(found, fmt.Sprintf("%.40s: write %s", key, variant(key, rules)))
		case !zero(obj[key]):
			found = append(found, fmt.Sprintf("%.40s: not an option that a job may set; leave it out", key))
		}
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// faults lists everything that is wrong with an object. Each begins with the path of its field.
type faults []string

// Error names the first few: a hostile request may have thousands.
func (f faults) Error() string {
	const shown = 8
	if len(f) > shown {
		return strings.Join(f[:shown], "; ") + fmt.Sprintf("; and %d more", len(f)-shown)
	}
	return strings.Join(f, "; ")
}

// variant returns the known key that the engine would take this one for, or "".
func variant(key string, rules map[string]rule) string {
	for name := range rules {
		if strings.EqualFold(name, key) {
			return name
		}
	}
	return ""
}

// ignore is for what the policy decides, whatever was requested: existing pipelines ask for all
// GPUs and a number of CPUs, and get their slot's.
func ignore(any) error { return nil }

// room is how much a value may hold.
type room struct{ values, bytes int }

// holds subtracts a value from the room, and reports whether there was enough.
func (r *room) holds(v any) bool {
	switch v := v.(type) {
	case string:
		r.bytes -= len(v)
	case []any:
		r.values -= len(v)
		for _, e := range v {
			r.holds(e)
		}
	case map[string]any:
		r.values -= len(v)
		for key, e := range v {
			r.bytes -= len(key)
			r.holds(e)
		}
	}
	return r.values >= 0 && r.bytes >= 0
}

// bounded makes each rule refuse values that exceed its field's room, and adds rules that have
// their own bounds.
func bounded(rules, more map[string]rule) map[string]rule {
	for name, next := range rules {
		most, ok := bounds[name]
		if !ok {
			most = usual
		}
		rules[name] = func(v any) error {
			if left := most; !left.holds(v) {
				return fmt.Errorf("a job can have at most %d values and %d bytes; write fewer, or put them into a file", most.values, most.bytes)
			}
			return next(v)
		}
	}
	maps.Copy(rules, more)
	return rules
}

// never is for fields that no job may set.
func never(why string) rule {
	return func(v any) error {
		if empty(v) {
			return nil
		}
		return errors.New(why)
	}
}

// oneOf is for fields of which only some values are harmless. The new request does not contain
// them.
func oneOf(why string, words ...string) rule {
	return func(v any) error {
		if s, ok := v.(string); zero(v) || (ok && slices.Contains(words, s)) {
			return nil
		}
		return errors.New(why)
	}
}

// maxString bounds a single value, in bytes: the longest is a path.
const maxString = 4096

func takeBool(dst *bool) rule {
	return func(v any) error {
		if v == nil {
			return nil
		}
		b, ok := v.(bool)
		if !ok {
			return errors.New("not true or false; write one of them")
		}
		*dst = b
		return nil
	}
}

// form is the pattern that a string must match.
type form func() *regexp.Regexp

func lazily(expr string) form { return lazy.Regexp(expr) }

// MatchString reports whether s has the form.
func (f form) MatchString(s string) bool { return f().MatchString(s) }

// takeString takes a string of a form. example is one.
func takeString(dst *string, form form, example string) rule {
	return func(v any) error {
		if v == nil {
			return nil
		}
		s, ok := v.(string)
		if !ok {
			return fmt.Errorf("not a string; write one such as %s", example)
		}
		if s != "" && (len(s) > maxString || !form.MatchString(s)) {
			return fmt.Errorf("%.80q is not valid; write one such as %s", s, example)
		}
		*dst = s
		return nil
	}
}

// takeStrings takes a list of strings, or one string, which the engine also accepts for a
// command. nil and an empty list stay distinct: an empty one replaces the image's.
func takeStrings(dst *[]string) rule {
	return func(v any) error {
		list, err := stringList(v)
		*dst = list
		return err
	}
}

func stringList(v any) ([]string, error) {
	switch v := v.(type) {
	case nil:
		return nil, nil
	case string:
		return []string{v}, nil
	case []any:
		list := make([]string, len(v))
		for i, e := range v {
			s, ok := e.(string)
			if !ok {
				return nil, errors.New("not a list of strings; write one")
			}
			list[i] = s
		}
		return list, nil
	}
	return nil, errors.New("not a list of strings; write one")
}

func stringMap(v any) (map[string]string, error) {
	if v == nil {
		return nil, nil
	}
	obj, ok := v.(map[string]any)
	if !ok {
		return nil, errors.New("not an object of strings; write one")
	}
	m := make(map[string]string, len(obj))
	for k, e := range obj {
		s, ok := e.(string)
		if !ok {
			return nil, errors.New("not an object of strings; write one")
		}
		m[k] = s
	}
	return m, nil
}

func number(v any) (int64, error) {
	if v == nil {
		return 0, nil
	}
	n, ok := v.(json.Number)
	if !ok {
		return 0, errors.New("not a number; write one")
	}
	i, err := n.Int64()
	if err != nil {
		return 0, errors.New("not a whole number of 64 bits; write one")
	}
	return i, nil
}

// atMost takes the smaller of what the policy allows and what was requested. Zero and negative
// numbers request nothing.
func atMost(dst *int64) rule {
	return func(v any) error {
		n, err := number(v)
		if n > 0 {
			*dst = min(*dst, n)
		}
		return err
	}
}

// healthcheck accepts only the absence of one. The engine would run it in a container whose
// /etc/passwd the job controls by then.
func healthcheck(v any) error {
	if obj, ok := v.(map[string]any); zero(v) || ok && len(obj) == 1 && slices.Equal(anyStrings(obj["Test"]), []string{"NONE"}) {
		return nil
	}
	return errors.New("not an option that a job may set; leave it out")
}

func securityOpt(v any) error {
	list, err := stringList(v)
	for _, opt := range list {
		if !slices.Contains([]string{"no-new-privileges", "no-new-privileges=true", "no-new-privileges:true"}, opt) {
			return fmt.Errorf("%.60q: a job keeps the engine's seccomp and AppArmor profiles; leave it out", opt)
		}
	}
	return err
}

// takeUlimits lowers what is above the bound. Limits on what memory, CPUs or processes bound
// anyway are free.
func (b *builder) takeUlimits(v any) error {
	list, ok := v.([]any)
	if !ok && v != nil {
		return errors.New("not a list; write one")
	}
	bounds := map[string]int64{"nofile": maxFiles, "core": 0}
	for _, e := range list {
		var name string
		var soft, hard int64
		err := judge(e, map[string]rule{
			"Name": takeString(&name, groupForm, "nofile"),
			"Soft": func(v any) (err error) { soft, err = number(v); return err },
			"Hard": func(v any) (err error) { hard, err = number(v); return err },
		})
		if err != nil {
			return err
		}
		bound, bounded := bounds[name]
		free := slices.Contains([]string{"memlock", "stack", "fsize", "nproc", "cpu", "data", "as", "rss"}, name)
		switch {
		case bounded:
			// -1 means unlimited.
			soft, hard = lower(soft, bound), lower(hard, bound)
		case !free:
			return fmt.Errorf("%.40q is not a limit that a job may set; leave it out", name)
		}
		b.host.Ulimits = append(b.host.Ulimits, &container.Ulimit{Name: name, Soft: soft, Hard: hard})
	}
	return nil
}

func lower(n, bound int64) int64 {
	if n < 0 {
		return bound
	}
	return min(n, bound)
}
