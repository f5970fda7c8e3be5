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
	WrittenBy string  `json:"written_by"`
	Schema    int     `json:"schema"`
	Boot      string  `json:"boot_id"`
	Settings  []saved `json:"settings"` // by name
}

// saved is a setting before kbnode changed it. In the file it may stand for many, with * in
// its name for each of Numbers: a machine has hundreds of interrupts.
type saved struct {
	Name    string    `json:"name"`
	Numbers []int     `json:"numbers,omitempty"`
	Form    plan.Form `json:"form"`
	Was     string    `json:"was"`
	Set     []string  `json:"set"`             // values that kbnode may have set, the newest last
	Done    bool      `json:"done,omitempty"`  // the newest was set
	Tries   int       `json:"tries,omitempty"` // how often the newest could not be set, or did not last
	Why     string    `json:"why,omitempty"`   // the last try failed; "" if that is as it should be
	PCI     string    `json:"pci,omitempty"`
	Slots   []int     `json:"slots,omitempty"`
	Session string    `json:"session,omitempty"` // see Host.session
}

func (s *saved) newest() string { return s.Set[len(s.Set)-1] }

func parseRecord(text []byte) (record, error) {
	var r record
	if err := json.Unmarshal(text, &r); err != nil {
		return r, err
	}
	if r.Schema != plan.Schema {
		return r, errors.New("another version of kbnode wrote it")
	}
	var all []saved
	for _, s := range r.Settings {
		pattern, numbers := s.Name, s.Numbers
		if s.Numbers = nil; numbers == nil {
			all = append(all, s)
		}
		for _, n := range numbers {
			s.Name = strings.Replace(pattern, "*", strconv.Itoa(n), 1)
			all = append(all, s)
		}
	}
	slices.SortFunc(all, func(a, b saved) int { return strings.Compare(a.Name, b.Name) })
	r.Settings = all
	for _, s := range all {
		_, _, gpu := plan.Tunable{Name: s.Name}.GPU()
		if file := strings.HasPrefix(s.Name, "/proc/") || strings.HasPrefix(s.Name, "/sys/"); !gpu && !file || path.Clean(s.Name) != s.Name {
			return r, fmt.Errorf("%.100q is not a setting", s.Name)
		}
		if len(s.Set) == 0 {
			return r, errors.New("it does not say what was set")
		}
	}
	return r, nil
}

// writeRecord writes the record with one entry for settings that differ only in the number,
// since each look reads it.
func (h *Host) writeRecord(r *record) error {
	short := *r
	short.Settings = []saved{}
	at := map[string]int{}
	for _, s := range r.Settings {
		name, n := cutNumber(s.Name)
		s.Name = name
		key := fmt.Sprint(s)
		i, ok := at[key]
		if !ok {
			i = len(short.Settings)
			at[key], short.Settings = i, append(short.Settings, s)
		}
		if n >= 0 {
			short.Settings[i].Numbers = append(short.Settings[i].Numbers, n)
		}
	}
	text, err := json.Marshal(short)
	if err != nil {
		return err
	}
	return h.store(plan.TunablesPath, string(text)+"\n")
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

func (r *record) search(name string) (i int, ok bool) {
	return slices.BinarySearchFunc(r.Settings, name, func(s saved, name string) int { return strings.Compare(s.Name, name) })
}

func (r *record) find(name string) *saved {
	i, ok := r.search(name)
	if !ok {
		return nil
	}
	return &r.Settings[i]
}

func (r *record) forget(name string) {
	r.Settings = slices.DeleteFunc(r.Settings, func(s saved) bool { return s.Name == name })
}

// begin records a setting that is about to change.
func (r *record) begin(t tuned) {
	i, ok := r.search(t.Name)
	if !ok || r.Settings[i].Session != t.session {
		s := saved{Name: t.Name, Form: t.Form, Was: t.now, Set: []string{t.Value}, PCI: t.PCI, Slots: t.Slots, Session: t.session}
		if ok {
			r.Settings[i] = s
		} else {
			r.Settings = slices.Insert(r.Settings, i, s)
		}
		return
	}
	switch s := &r.Settings[i]; {
	case s.newest() != t.Value:
		s.Set, s.Done, s.Tries, s.Why = []string{s.newest(), t.Value}, false, 0, ""
	case s.Done:
		s.Tries++
		s.Why = fmt.Sprintf("is left alone: another program changed it %d times", s.Tries)
	}
}

// gaveUp reports whether a setting is no longer tried.
func (r *record) gaveUp(t tuned) bool {
	s := r.find(t.Name)
	return s != nil && s.newest() == t.Value && s.Session == t.session && s.Tries >= maxTries
}

// warnings returns what a person should know of planned settings that are not made.
func (r *record) warnings(planned map[string]bool) []string {
	count := map[string]int{}
	for _, s := range r.Settings {
		if s.Tries >= maxTries && s.Why != "" {
			name := s.Name
			if pattern, _ := cutNumber(name); planned[pattern] {
				name = pattern
			}
			count[name+" "+s.Why]++
		}
	}
	var list []string
	for _, text := range slices.Sorted(maps.Keys(count)) {
		if n := count[text]; n > 1 {
			text += fmt.Sprintf(" (%d of them)", n)
		}
		list = append(list, text)
	}
	return list
}
