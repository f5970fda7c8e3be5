package main

import (
	"errors"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
)

const repository = "https://github.com/gpu-mode/kbnode/blob/"

// installed is where packages have what pages link to, seen from /usr/share/doc/kbnode.
var installed = map[string]string{
	"examples/README.md":               "examples/README.md",
	"examples/eval.py":                 "examples/eval.py",
	"examples/identity_cuda":           "examples/identity_cuda",
	"examples/prefix_python":           "examples/prefix_python",
	"packaging/ansible":                "../../kbnode/ansible",
	"packaging/cloud-init":             "../../kbnode/cloud-init",
	"packaging/schemas":                "../../kbnode/schemas",
	"packaging/config.schema.json":     "../../kbnode/config.schema.json",
	"packaging/config.yaml":            "examples/config.yaml",
	"packaging/kbnode-install.service": "../../../lib/systemd/system/kbnode-install.service",
}

var (
	link    = regexp.MustCompile(`(\]\(|^\[[^]]+\]: )([^)\s#]+)`)
	release = regexp.MustCompile(`^\d+\.\d+\.\d+(-rc\.\d+)?$`)
)

// readable copies the pages in a directory. A link to a file that packages lack leads to the repository.
func readable(from, to, version string) error {
	at := repository + "main/"
	if release.MatchString(version) {
		at = repository + "v" + version + "/"
	}
	files, err := filepath.Glob(filepath.Join(from, "*.md"))
	if err == nil && len(files) == 0 {
		err = errors.New("there are none in " + from)
	}
	errs := []error{err, os.RemoveAll(to), os.MkdirAll(to, 0o755)} //nolint:gosec // to be packed
	for _, file := range files {
		text, err := os.ReadFile(file)
		page := link.ReplaceAllStringFunc(string(text), func(all string) string {
			m := link.FindStringSubmatch(all)
			return m[1] + target(m[2], at)
		})
		errs = append(errs, err, os.WriteFile(filepath.Join(to, filepath.Base(file)), []byte(page), 0o644)) //nolint:gosec // to be packed
	}
	return errors.Join(errs...)
}

// target returns where a link of a page in docs leads in a package.
func target(to, at string) string {
	name := path.Join("docs", to)
	switch {
	case strings.Contains(to, ":"), path.Dir(name) == "docs" && strings.HasSuffix(name, ".md"):
		return to
	}
	for part, place := range installed {
		if name == part {
			return place
		}
		if rest, ok := strings.CutPrefix(name, part+"/"); ok {
			return place + "/" + rest
		}
	}
	return at + name
}
