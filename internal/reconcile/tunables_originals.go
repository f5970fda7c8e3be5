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

// originals is what plan.TunablesPath says about this boot: the settings before kbnode changed
// them, by name, written before they change.
type originals struct {
	boot     string
	settings map[string]*saved
}

// originalsFile is the content of plan.TunablesPath.
type originalsFile struct {
	WrittenBy string  `json:"written_by"`
	Schema    int     `json:"schema"`
	Boot      string  `json:"boot_id"`
	Settings  []saved `json:"settings"`
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

// parse adds the settings of a file, unless they are of an earlier boot, which has undone them.
func (r *originals) parse(text []byte) error {
	var f originalsFile
	if err := json.Unmarshal(text, &f); err != nil {
		return err
	}
	if f.Schema != plan.Schema {
		return errors.New("another version of kbnode wrote it")
	}
	for _, s := range f.Settings {
		_, _, gpu := plan.Tunable{Name: s.Name}.GPU()
		if file := strings.HasPrefix(s.Name, "/proc/") || strings.HasPrefix(s.Name, "/sys/"); !gpu && !file || path.Clean(s.Name) != s.Name {
			return fmt.Errorf("%.100q is not a setting", s.Name)
		}
		if len(s.Set) == 0 {
			return errors.New("it does not say what was set")
		}
		pattern, numbers := s.Name, s.Numbers
		s.Numbers = nil
		if f.Boot == r.boot && numbers == nil {
			r.settings[s.Name] = &s
		}
		for _, n := range numbers {
			if one := s; f.Boot == r.boot {
				one.Name = strings.Replace(pattern, "*", strconv.Itoa(n), 1)
				r.settings[one.Name] = &one
			}
		}
	}
	return nil
}

// writeOriginals writes the file with one entry for settings that differ only in the number,
// since each look reads it.
func (h *Host) writeOriginals(r *originals) error {
	f := originalsFile{WrittenBy: "kbnode", Schema: plan.Schema, Boot: r.boot, Settings: []saved{}}
	at := map[string]int{}
	for _, name := range slices.Sorted(maps.Keys(r.settings)) {
		s := *r.settings[name]
		var n int
		s.Name, n = cutNumber(name)
		key := fmt.Sprint(s)
		i, ok := at[key]
		if !ok {
			i = len(f.Settings)
			at[key], f.Settings = i, append(f.Settings, s)
		}
		if n >= 0 {
			f.Settings[i].Numbers = append(f.Settings[i].Numbers, n)
		}
	}
	text, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return h.Store(plan.TunablesPath, string(text)+"\n")
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

// begin records a setting that is about to change.
func (r *originals) begin(t tuned) {
	switch s := r.settings[t.Name]; {
	case s == nil:
		r.settings[t.Name] = &saved{Name: t.Name, Form: t.Form, Was: t.now, Set: []string{t.Value}, PCI: t.PCI, Slots: t.Slots, Session: t.session}
	case s.newest() != t.Value:
		s.Set, s.Done, s.Tries, s.Why = []string{s.newest(), t.Value}, false, 0, ""
	case s.Done:
		s.Tries++
		s.Why = fmt.Sprintf("is left alone: another program changed it %d times", s.Tries)
	}
}

// gaveUp reports whether a setting is no longer tried.
func (r *originals) gaveUp(t tuned) bool {
	s := r.settings[t.Name]
	return s != nil && s.newest() == t.Value && s.Tries >= maxTries
}

// warnings returns what a person should know of planned settings that are not made.
func (r *originals) warnings() []string {
	count := map[string]int{}
	for _, s := range r.settings {
		if s.Tries < maxTries || s.Why == "" {
			continue
		}
		name := s.Name
		if isInterrupt(name) {
			name, _ = cutNumber(name)
		}
		count[name+" "+s.Why]++
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

// isInterrupt reports whether a setting belongs to one interrupt, which may be freed at any
// time, or which only the kernel may move.
func isInterrupt(name string) bool {
	pattern, _ := cutNumber(name)
	return strings.HasPrefix(pattern, "/proc/irq/*/")
}
