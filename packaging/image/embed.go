// Package image holds the evaluation images, as data: versions, and a template of their Dockerfiles.
package image

import (
	_ "embed"
	"fmt"
	"slices"
	"strings"
	"text/template"
)

// Variants are the images that there are.
var Variants = []string{"cpu", "cuda", "rocm"}

var (
	//go:embed Dockerfile.tmpl
	layout string
	//go:embed pins.txt
	pinned string
)

// Pin is a version in a variant.
type Pin struct {
	Variant string
	Name    string // of an ARG, or of a group of pip packages
	Version string
	Newer   string // where there are newer ones, as pins.txt says; - for nowhere
}

// Pins returns all versions, in the order of their file.
func Pins() (all []Pin) {
	for line := range strings.Lines(pinned) {
		if words := strings.Fields(line); len(words) == 4 && words[0] != "#" {
			all = append(all, Pin{words[0], words[1], words[2], words[3]})
		}
	}
	return all
}

// dockerfile is what the template needs of a variant.
type dockerfile struct {
	Title    string
	Packages string // of the distribution
	pins     []Pin
	used     map[string]bool // names of pins
}

func (d dockerfile) versions(name string) (all []string) {
	for _, p := range d.pins {
		if p.Name == name {
			all = append(all, p.Version)
			d.used[name] = true
		}
	}
	return all
}

// Arg declares a pinned ARG.
func (d dockerfile) Arg(name string) (string, error) {
	if v := d.versions(name); len(v) == 1 {
		return "ARG " + name + "=" + v[0], nil
	}
	return "", fmt.Errorf("pins.txt has not one version of %s", name)
}

// Pip lists a group of pip packages, a line of a command for each.
func (d dockerfile) Pip(group string) (string, error) {
	all := d.versions(group)
	if len(all) == 0 {
		return "", fmt.Errorf("pins.txt has no packages %s", group)
	}
	return `"` + strings.Join(all, "\" \\\n      \"") + `"`, nil
}

// Repository is the base image without its tag.
func (d dockerfile) Repository() string {
	name, _, _ := strings.Cut(d.versions("BASE")[0], ":")
	return name
}

// Dockerfile is a variant's, which needs no other file; "" where there is no such
// variant.
func Dockerfile(variant string) string {
	if !slices.Contains(Variants, variant) {
		return ""
	}
	text, err := render(variant, Pins())
	if err != nil {
		panic(err) // both are embedded
	}
	return text
}

// render returns an error, too, if a pin of the variant is in no Dockerfile.
func render(variant string, pins []Pin) (string, error) {
	d := map[string]dockerfile{
		"cpu":  {Title: "CPU", Packages: "g++ python3 python3-numpy"},
		"cuda": {Title: "CUDA", Packages: "ca-certificates clang-18 curl g++ g++-13 gcc-13 git python3 python3-venv"},
		"rocm": {Title: "ROCm", Packages: "clang cmake g++ git lld python3 python3-dev python3-venv"},
	}[variant]
	d.pins = slices.DeleteFunc(slices.Clone(pins), func(p Pin) bool { return p.Variant != variant })
	d.used = map[string]bool{}
	var b strings.Builder
	if err := template.Must(template.New("").Parse(layout)).ExecuteTemplate(&b, variant, d); err != nil {
		return "", err
	}
	for _, p := range d.pins {
		if !d.used[p.Name] {
			return "", fmt.Errorf("%s %s of pins.txt is not in the Dockerfile", variant, p.Name)
		}
	}
	return b.String(), nil
}
