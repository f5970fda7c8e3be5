package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// modules lists what Python could import from the directory of the main file,
// by entry name.
func (s *sources) modules(main string) map[string]string {
	found := map[string]string{} // entry, relative to the root: module
	dir := filepath.Dir(strings.TrimPrefix(main, s.root.Name()+"/"))
	for _, name := range s.list(dir) {
		module, _, dotted := strings.Cut(name, ".")
		switch {
		case dotted && slices.Contains([]string{".py", ".pyc", ".so"}, filepath.Ext(name)):
		case !dotted && s.isPackage(filepath.Join(dir, name)):
		default:
			continue
		}
		found[filepath.Join(dir, name)] = module
	}
	return found
}

// isPackage says whether a directory takes precedence over modules of its name:
// one without an __init__ does not.
func (s *sources) isPackage(dir string) bool {
	return slices.ContainsFunc(s.list(dir), func(n string) bool { return strings.HasPrefix(n, "__init__.") })
}

// list returns the names in a directory, none if it is not one. A program may
// have put there what blocks when it is opened, a pipe.
func (s *sources) list(dir string) []string {
	f, err := s.root.OpenFile(dir, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // opened for reading
	names, _ := f.Readdirnames(-1)
	return names
}

// findElsewhere prints those of its arguments that are modules of Python itself
// or installed. It looks nowhere in the current directory.
const findElsewhere = `import sys
sys.path = [p for p in sys.path[1:] if p not in ("", sys.argv[1])]
from importlib.machinery import PathFinder
for name in sys.argv[2:]:
    if name in getattr(sys, "stdlib_module_names", ()) or PathFinder.find_spec(name, sys.path):
        print(name)
`

// maxModules bounds what is asked about in one command line.
const maxModules = 1000

// unshadow removes modules that a program planted in the job's directory and
// that would be imported in place of a source, or of a module that is Python's
// own or installed. Others may be of use and stay.
func (e *engine) unshadow(ctx context.Context) error {
	hidden := map[string]bool{} // modules that only the task may define
	for _, f := range e.src.files {
		module, _, _ := strings.Cut(filepath.Base(f.Key), ".")
		hidden[module] = true
	}
	fresh := map[string][]string{} // module: entries
	for entry, module := range e.src.modules(e.main) {
		if _, old := e.before[entry]; !old {
			fresh[module] = append(fresh[module], entry)
		}
	}
	if len(fresh) == 0 {
		return nil
	}
	if len(fresh) > maxModules {
		return fmt.Errorf("%s made more than %d modules in the job's directory; write them elsewhere", preRunProgram, maxModules)
	}
	argv := []string{"python3", "-c", findElsewhere, e.dir}
	for module := range fresh {
		if module != "" && !strings.HasPrefix(module, "-") {
			argv = append(argv, module)
		}
	}
	o, err := program{argv: argv, env: e.env, dir: string(os.PathSeparator), limit: seconds(toolLimit)}.run(ctx)
	if err != nil {
		return err
	}
	for module := range strings.FieldsSeq(string(o.stdout.head)) {
		hidden[module] = true
	}
	for module := range hidden {
		for _, entry := range fresh[module] {
			e.note("%s, made by the submission, hides another module: removed", entry)
			if err := e.src.root.RemoveAll(entry); err != nil {
				return err
			}
		}
	}
	return nil
}
