package host

import (
	"errors"
	"path"
	"slices"
	"strings"
)

// unitDirs are where systemd looks for units, the first one first.
var unitDirs = []string{
	"/etc/systemd/system", "/run/systemd/transient", "/run/systemd/system", "/run/systemd/generator",
	"/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system",
}

// UnitValues returns the values of a unit's keys that begin with a text, such as "ExecStart=", from its file
// and its drop-ins. It returns false if there is no file.
func (t Tree) UnitValues(unit, prefix string) (values []string, there bool, err error) {
	names := []string{unit}
	if name, instance, is := strings.Cut(unit, "@"); is {
		names = append(names, name+"@"+path.Ext(instance))
	}
	var files, dropIns []string
	for _, name := range names {
		for _, dir := range unitDirs {
			if file := dir + "/" + name; t.Exists(file) && len(files) == 0 {
				files = append(files, file)
			}
			for _, file := range t.List(dir + "/" + name + ".d/*.conf") {
				if !slices.ContainsFunc(dropIns, func(has string) bool { return path.Base(has) == path.Base(file) }) {
					dropIns = append(dropIns, file)
				}
			}
		}
	}
	there = len(files) > 0
	slices.SortFunc(dropIns, func(a, b string) int { return strings.Compare(path.Base(a), path.Base(b)) })
	type setting struct{ key, value string }
	var settings []setting
	for _, file := range append(files, dropIns...) {
		text, errRead := t.Read(file)
		err = errors.Join(err, errRead)
		for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
			key, value, is := strings.Cut(line, "=")
			switch key, value = strings.TrimSpace(key), strings.TrimSpace(value); {
			case !is || !strings.HasPrefix(key+"=", prefix):
			case value == "": // the earlier ones of this key do not count
				settings = slices.DeleteFunc(settings, func(s setting) bool { return s.key == key })
			default:
				settings = append(settings, setting{key, value})
			}
		}
	}
	for _, s := range settings {
		values = append(values, s.value)
	}
	return values, there, err
}
