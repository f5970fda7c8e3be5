package config

import (
	"errors"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/yamlfile"
)

// Checked is the JSON of kbnode config check; docs/configuration.md describes it.
type Checked struct {
	File     string           `json:"file"`
	OK       bool             `json:"ok"`
	Keys     int              `json:"keys"`
	Faults   []yamlfile.Fault `json:"faults"`
	Warnings []string         `json:"warnings"`
}

// CheckFile checks a file as strictly as kbnode install does.
func CheckFile(name string, doc []byte) (Checked, error) {
	f, err := Read(name, doc)
	report := Checked{File: name, OK: err == nil, Keys: len(f.Lines), Faults: []yamlfile.Fault{}, Warnings: append([]string{}, f.Notes...)}
	if faults, ok := errors.AsType[*yamlfile.Faults](err); ok {
		report.Faults = faults.List
	}
	if err == nil && f.Config.Queue == "" {
		report.Warnings = append(report.Warnings, "no queue is set, and kbnode install needs one; add a line such as queue: b200")
	}
	return report, err
}

// Shown is the JSON of kbnode config show; docs/configuration.md describes it.
type Shown struct {
	File   string            `json:"file"` // "" without one
	Config map[string]any    `json:"config"`
	Origin map[string]Origin `json:"origin"` // by dotted path
	Hidden []string          `json:"hidden"`
}

// Show returns settings and their origins; file is "" without one.
func Show(file string, list []Setting) (Shown, error) {
	v := Shown{File: file, Config: map[string]any{}, Origin: map[string]Origin{}, Hidden: []string{}}
	for _, s := range list {
		v.Origin[s.Key] = s.Origin
		if s.Hidden {
			v.Hidden = append(v.Hidden, s.Key)
		}
	}
	text, err := Text(list)
	if err == nil {
		err = yaml.Unmarshal([]byte(text), &v.Config)
	}
	return v, err
}
