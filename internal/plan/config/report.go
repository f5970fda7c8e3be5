package config

import (
	"cmp"
	"errors"
	"fmt"
	"reflect"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/std/yamlfile"
)

// Checked is the JSON of kbnode config check; docs/configuration.md describes it.
type Checked struct {
	File     string           `json:"file"`
	OK       bool             `json:"ok"`
	Keys     int              `json:"keys"`
	Faults   []yamlfile.Fault `json:"faults"`
	Warnings []string         `json:"warnings"`
}

// CheckFile checks a file as strictly as kbnode install does on a machine that fits it.
func CheckFile(name string, doc []byte) (Checked, error) {
	f, err := Read(name, doc)
	if n := f.Config.Slots; n > 0 && !f.Config.GPUs.None {
		// Not in Validate, which sees flags alone: --slots 4 may be for a file with gpus: none.
		wrong := &yamlfile.Faults{File: name}
		wrong.Add(f.Lines["slots"], "slots: %d is set, but the GPUs decide how many slots there are; also write gpus: none, or leave slots out", n)
		f, err = File{}, wrong
	}
	report := Checked{File: name, OK: err == nil, Keys: len(f.Lines), Faults: []yamlfile.Fault{}, Warnings: []string{}}
	if faults, ok := errors.AsType[*yamlfile.Faults](err); ok {
		report.Faults = faults.List
	}
	if err == nil && f.Config.Queue == "" {
		report.Warnings = append(report.Warnings, "no queue is set, and kbnode install needs one; add a line such as queue: b200")
	}
	if err != nil {
		return report, err
	}
	c := f.Config
	for _, w := range append(c.PatternWarnings(), c.Job.unusedNetworks(), c.Job.NetworksWarning(), c.Job.TimeWarning(), c.Notify.warning()) {
		if w != "" {
			report.Warnings = append(report.Warnings, w)
		}
	}
	return report, nil
}

// Shown is the JSON of kbnode config show; docs/configuration.md describes it.
type Shown struct {
	File   string         `json:"file"` // "" without one
	Config map[string]any `json:"config"`
	Hidden []string       `json:"hidden"` // keys with secrets
	Text   string         `json:"-"`      // the same, as a configuration file
}

// Show returns a configuration with its defaults, without its secrets; file is "" without one.
func Show(file string, c Config) (Shown, error) {
	v := Shown{File: file, Config: map[string]any{}, Hidden: []string{}}
	if c.GPUs.IsZero() && c.GPUCount == 0 {
		c.GPUs.All = true
	}
	eachKey(reflect.ValueOf(&c).Elem(), "", func(key string, value reflect.Value) {
		if shown, some := hide(key, value.Interface()); some {
			value.Set(reflect.ValueOf(shown).Convert(value.Type()))
			v.Hidden = append(v.Hidden, key)
		}
	})
	about := "The configuration of this node. File: " + cmp.Or(file, "none")
	if len(v.Hidden) > 0 {
		about += "\n# Secrets are shown as " + hidden + ": restore them before you use this file."
	}
	var err error
	if v.Text, err = Render(c, about); err == nil {
		err = yaml.Unmarshal([]byte(v.Text), &v.Config)
	}
	return v, err
}

// Differences says of each key that differs what a file and what was given instead have.
func Differences(file, given Config) (all []string) {
	was := map[string]string{}
	eachKey(reflect.ValueOf(&file).Elem(), "", func(key string, v reflect.Value) { was[key] = shownValue(key, v) })
	eachKey(reflect.ValueOf(&given).Elem(), "", func(key string, v reflect.Value) {
		if now := shownValue(key, v); now != was[key] {
			all = append(all, fmt.Sprintf("%s is %s in the file, and %s here", key, was[key], now))
		}
	})
	return all
}

// shownValue returns a value for a message, on one line and without secrets.
func shownValue(key string, v reflect.Value) string {
	if v.IsZero() {
		return "not set"
	}
	shown, _ := hide(key, v.Interface())
	text, err := yaml.Marshal(shown)
	if err != nil {
		return "another"
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

// eachKey calls f for every key below v, by its dotted path.
func eachKey(v reflect.Value, prefix string, f func(string, reflect.Value)) {
	for field, value := range v.Fields() {
		if isGroup(field.Type) {
			eachKey(value, prefix+keyOf(field)+".", f)
		} else {
			f(prefix+keyOf(field), value)
		}
	}
}
