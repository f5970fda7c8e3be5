package detect

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"syscall"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// CDISpec is one of CDI's specification files.
type CDISpec struct {
	Path    string
	Devices []string // fully qualified: nvidia.com/gpu=0
	Needs   []string // host paths that its containers get, and of the hooks that it runs
	Err     error    // why the engine skips it

	common cdiEdits            // of all its devices
	edits  map[string]cdiEdits // of one, by its name in Devices
}

// ReadCDI reads the CDI specifications of the machine below root.
func ReadCDI(root string, dirs []string) ([]CDISpec, error) {
	t, err := openTree(root)
	if err != nil {
		return nil, err
	}
	defer t.close() //nolint:errcheck // nothing was written
	return readCDI(t, dirs), nil
}

func readCDI(t tree, dirs []string) []CDISpec {
	var specs []CDISpec
	for _, dir := range dirs {
		files := slices.DeleteFunc(t.names(strings.Trim(path.Clean(dir), "/")), func(name string) bool {
			ext := path.Ext(name)
			return ext != ".json" && ext != ".yaml" // the extensions that CDI reads
		})
		for _, name := range files[:min(len(files), inventory.MaxCDISpecs)] {
			s := CDISpec{Path: path.Join(dir, name)}
			info, err := fs.Stat(t.files, s.Path[1:])
			switch {
			case err == nil && info.IsDir(): // which CDI skips, too
				continue
			case errors.Is(err, syscall.ELOOP): // it will not be read the next time either
				s.Err = errors.New("it is a loop of symbolic links")
			default:
				s.parse(t.text(s.Path[1:]))
			}
			specs = append(specs, s)
		}
	}
	return specs
}

// cdiDevices returns the names of the devices that an engine takes from CDI's specification
// files. A broken file does not hide the others.
func cdiDevices(t tree, dirs []string) ([]string, error) {
	specs := readCDI(t, dirs)
	var errs []error
	for _, s := range specs {
		if s.Err != nil {
			errs = append(errs, fmt.Errorf("read CDI specification %s: %w", s.Path, s.Err))
		}
	}
	counts, both := CountingCDI(specs)
	for _, name := range slices.Sorted(maps.Keys(both)) {
		errs = append(errs, errors.New(both[name]))
	}
	return slices.Sorted(maps.Keys(counts)), errors.Join(errs...)
}

// CountingCDI returns the specification that each device comes from, by the rule of CDI's
// cache: a later directory takes precedence, and a device that two files of one directory
// name does not exist. both says so of these. specs are as ReadCDI returns them.
func CountingCDI(specs []CDISpec) (counts map[string]*CDISpec, both map[string]string) {
	counts, both = map[string]*CDISpec{}, map[string]string{}
	for i := range specs {
		s := &specs[i]
		if s.Err != nil {
			continue
		}
		for _, name := range s.Devices {
			if o := counts[name]; o != nil && path.Dir(o.Path) == path.Dir(s.Path) {
				both[name] = fmt.Sprintf("%s and %s both name %s, so Docker ignores both", o.Path, s.Path, name)
			}
			counts[name] = s
		}
	}
	for name := range both { // also if a later directory names it
		delete(counts, name)
	}
	return counts, both
}

// cdiEdits are the changes that a device, or all of them, make to a container.
type cdiEdits struct {
	DeviceNodes []struct {
		Path     string `yaml:"path"`
		HostPath string `yaml:"hostPath"`
		Major    uint32 `yaml:"major"` // 0: the engine looks at the node, and ignores Minor
		Minor    uint32 `yaml:"minor"`
	} `yaml:"deviceNodes"`
	Mounts []struct {
		HostPath string `yaml:"hostPath"`
	} `yaml:"mounts"`
	Hooks []struct {
		Path string `yaml:"path"`
	} `yaml:"hooks"`
}

func (s *CDISpec) parse(text string) {
	var spec struct {
		Kind    string `yaml:"kind"`
		Devices []struct {
			Name  string   `yaml:"name"`
			Edits cdiEdits `yaml:"containerEdits"`
		} `yaml:"devices"`
		Edits cdiEdits `yaml:"containerEdits"`
	}
	s.Err = yaml.Unmarshal([]byte(text), &spec)
	if s.Err != nil { // JSON is YAML
		return
	}
	if spec.Kind == "" {
		s.Err = errors.New("it has no kind")
		return
	}
	s.need(spec.Edits)
	s.common, s.edits = spec.Edits, map[string]cdiEdits{}
	for _, d := range spec.Devices {
		name := spec.Kind + "=" + d.Name
		if _, twice := s.edits[name]; twice {
			s.Devices, s.Err = nil, fmt.Errorf("it names the device %s twice", d.Name)
			return
		}
		s.edits[name] = d.Edits
		s.Devices = append(s.Devices, name)
		s.need(d.Edits)
	}
	slices.Sort(s.Needs)
	s.Needs = slices.Compact(s.Needs)
}

func (s *CDISpec) need(e cdiEdits) {
	for _, n := range e.DeviceNodes {
		if n.HostPath != "" {
			n.Path = n.HostPath
		}
		s.Needs = append(s.Needs, n.Path)
	}
	for _, m := range e.Mounts {
		s.Needs = append(s.Needs, m.HostPath)
	}
	for _, h := range e.Hooks {
		s.Needs = append(s.Needs, h.Path)
	}
}
