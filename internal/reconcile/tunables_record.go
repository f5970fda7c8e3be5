package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// record is the content of plan.TunablesPath: the settings before kbnode changed them,
// written before they change. A boot makes it void.
type record struct {
	WrittenBy string         `json:"written_by"`
	Schema    int            `json:"schema"`
	Boot      string         `json:"boot_id"`
	Settings  []kept         `json:"settings"` // by name
	Refused   []refusal      `json:"refused,omitempty"`
	Rounds    map[string]int `json:"rounds,omitempty"` // how often someone else changed it, by group
}

// kept is the original value of a setting.
type kept struct {
	place
	Group   string    `json:"group,omitempty"` // "" means Name
	Form    plan.Form `json:"form"`
	Was     string    `json:"was"`
	Set     []string  `json:"set"`            // values that kbnode may have set, the newest last
	Done    bool      `json:"done,omitempty"` // the newest was set
	PCI     string    `json:"pci,omitempty"`
	Slots   []int     `json:"slots,omitempty"`
	Session string    `json:"session,omitempty"`
}

// refusal is a setting that cannot be made.
type refusal struct {
	place
	Group   string `json:"group,omitempty"`
	Value   string `json:"value"`
	Why     string `json:"why,omitempty"` // "" if that is as it should be
	Tries   int    `json:"tries"`
	Session string `json:"session,omitempty"`
}

// place is the name of a setting. In the file it may stand for many, with * for each of
// Numbers: a machine has hundreds of interrupts.
type place struct {
	Name    string `json:"name"`
	Numbers []int  `json:"numbers,omitempty"`
}

func placeOfKept(k *kept) *place       { return &k.place }
func placeOfRefusal(f *refusal) *place { return &f.place }

// collapse merges entries that differ only in the number.
func collapse[T any](list []T, at func(*T) *place) []T {
	out := []T{}
	seen := map[string]int{}
	for _, v := range list {
		name, n := cutNumber(at(&v).Name)
		at(&v).Name = name
		text, err := json.Marshal(v)
		if err != nil {
			panic(err) // numbers and texts only
		}
		i, ok := seen[string(text)]
		if !ok {
			i = len(out)
			seen[string(text)] = i
			out = append(out, v)
		}
		if n >= 0 {
			at(&out[i]).Numbers = append(at(&out[i]).Numbers, n)
		}
	}
	return out
}

// expand is the inverse of collapse, sorted by name.
func expand[T any](list []T, at func(*T) *place) []T {
	var out []T
	for _, v := range list {
		p := *at(&v)
		if p.Numbers == nil {
			out = append(out, v)
		}
		for _, n := range p.Numbers {
			*at(&v) = place{Name: strings.Replace(p.Name, "*", strconv.Itoa(n), 1)}
			out = append(out, v)
		}
	}
	slices.SortFunc(out, func(a, b T) int { return strings.Compare(at(&a).Name, at(&b).Name) })
	return out
}

// cutNumber puts * in place of the number that a part of a path is or ends in; n is -1 if
// there is none.
func cutNumber(name string) (pattern string, n int) {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		q := strings.TrimRight(p, "0123456789")
		n, err := strconv.Atoi(p[len(q):])
		if err == nil && strconv.Itoa(n) == p[len(q):] && !strings.ContainsAny(p, ":-*") {
			parts[i] = q + "*"
			return strings.Join(parts, "/"), n
		}
	}
	return name, -1
}

func parseRecord(text []byte) (record, error) {
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	if r.Schema != plan.Schema {
		return r, errors.New("another version of kbnode wrote it")
	}
	r.Settings, r.Refused = expand(r.Settings, placeOfKept), expand(r.Refused, placeOfRefusal)
	for _, k := range r.Settings {
		_, _, gpu := plan.Tunable{Name: k.Name}.GPU()
		if file := strings.HasPrefix(k.Name, "/proc/") || strings.HasPrefix(k.Name, "/sys/"); !gpu && !file || path.Clean(k.Name) != k.Name {
			return r, fmt.Errorf("%.100q is not a setting", k.Name)
		}
		if len(k.Set) == 0 {
			return r, errors.New("it does not say what was set")
		}
	}
	return r, nil
}

func (r *record) find(name string) *kept {
	i, ok := slices.BinarySearchFunc(r.Settings, name, func(k kept, name string) int { return strings.Compare(k.Name, name) })
	if !ok {
		return nil
	}
	return &r.Settings[i]
}

// gaveUp reports whether a setting is no longer tried.
func (r *record) gaveUp(t tuned) bool {
	return r.Rounds[t.group] >= maxRounds || slices.ContainsFunc(r.Refused, func(f refusal) bool {
		return f.Name == t.Name && f.Value == t.Value && f.Session == t.session && f.Tries >= maxTries
	})
}

// warnings returns what a person should know of settings that are not made.
func (r *record) warnings() []string {
	count := map[string]int{}
	for _, f := range r.Refused {
		if f.Tries >= maxTries && f.Why != "" {
			name := f.Name
			if f.Group != "" {
				name = f.Group
			}
			count[name+" is not set: "+f.Why]++
		}
	}
	for group, n := range r.Rounds {
		if n >= maxRounds {
			count[fmt.Sprintf("%s is left alone: another program changed it %d times", group, n)]++
		}
	}
	var list []string
	for _, text := range slices.Sorted(maps.Keys(count)) {
		if n := count[text]; n > 1 {
			text += fmt.Sprintf(" (%d times)", n)
		}
		list = append(list, text)
	}
	return list
}

func (k kept) group() string {
	if k.Group != "" {
		return k.Group
	}
	return k.Name
}

// begin records a setting that is about to change. It reports whether someone else has
// changed it since kbnode did.
func (r *record) begin(t tuned) (again bool) {
	i, ok := slices.BinarySearchFunc(r.Settings, t.Name, func(k kept, name string) int { return strings.Compare(k.Name, name) })
	if ok && r.Settings[i].Session == t.session {
		k := &r.Settings[i]
		last := k.Set[len(k.Set)-1]
		again = k.Done && last == t.Value
		if last != t.Value {
			k.Set, k.Done = []string{last, t.Value}, false
		}
		return again
	}
	k := kept{place: place{Name: t.Name}, Form: t.Form, Was: t.now, Set: []string{t.Value}, PCI: t.PCI, Slots: t.Slots, Session: t.session}
	if t.group != t.Name {
		k.Group = t.group
	}
	if ok {
		r.Settings[i] = k
	} else {
		r.Settings = slices.Insert(r.Settings, i, k)
	}
	return false
}

func (r *record) forget(name string) {
	r.Settings = slices.DeleteFunc(r.Settings, func(k kept) bool { return k.Name == name })
}

// writeRecord writes the record in a short form, since each look reads it.
func (h *Host) writeRecord(r *record) error {
	short := *r
	short.Settings, short.Refused = collapse(r.Settings, placeOfKept), collapse(r.Refused, placeOfRefusal)
	text, err := json.Marshal(short)
	if err == nil {
		err = h.write(plan.TunablesPath, 0o644, owner{0, 0}, strings.NewReader(string(text)+"\n"), nil)
	}
	return wrap(err, "write "+plan.TunablesPath)
}
