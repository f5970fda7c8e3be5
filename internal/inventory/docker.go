package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
)

// maxSpecs bounds the CDI files that are read per directory.
const maxSpecs = 64

// DefaultCDIDirs returns where an engine looks for specifications; later directories take
// precedence.
func DefaultCDIDirs() []string { return []string{"/etc/cdi", "/var/run/cdi"} }

// CDISpec is one of CDI's specification files.
type CDISpec struct {
	Path    string
	Devices []string // fully qualified: nvidia.com/gpu=0
	Needs   []string // host paths that its containers get, and of the hooks that it runs
	Err     error    // why the engine skips it
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
		for _, name := range files[:min(len(files), maxSpecs)] {
			s := CDISpec{Path: path.Join(dir, name)}
			s.parse(t.text(s.Path[1:]))
			specs = append(specs, s)
		}
	}
	return specs
}

// cdiDevices returns the names of the devices in CDI's specification files. A broken file
// does not hide the others.
func cdiDevices(t tree, dirs []string) ([]string, error) {
	var names []string
	var errs []error
	for _, s := range readCDI(t, dirs) {
		names = append(names, s.Devices...)
		if s.Err != nil {
			errs = append(errs, fmt.Errorf("read CDI specification %s: %w", s.Path, s.Err))
		}
	}
	slices.Sort(names)
	return slices.Compact(names), errors.Join(errs...)
}

// cdiEdits are the changes that a device, or all of them, make to a container.
type cdiEdits struct {
	DeviceNodes []struct {
		Path     string `yaml:"path"`
		HostPath string `yaml:"hostPath"`
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
	if s.Err = yaml.Unmarshal([]byte(text), &spec); s.Err != nil { // JSON is YAML
		return
	}
	if spec.Kind == "" {
		s.Err = errors.New("it has no kind")
		return
	}
	s.need(spec.Edits)
	for _, d := range spec.Devices {
		s.Devices = append(s.Devices, spec.Kind+"="+d.Name)
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

// askDocker asks the engine about itself. A missing engine is not an error if Docker is not
// installed. With a version, an error is about CDI's files.
func askDocker(ctx context.Context, t tree, socket string) (Docker, error) {
	socket = cmp.Or(socket, config.DefaultDockerSocket)
	engine, err := docker.New(socket)
	if err != nil {
		return Docker{}, err
	}
	defer engine.Close() //nolint:errcheck // only asked
	info, err := engine.Info(ctx)
	if err != nil {
		if _, missing := os.Stat(socket); errors.Is(missing, os.ErrNotExist) && findProgram(t, "dockerd") == "" {
			return Docker{}, nil
		}
		return Docker{}, err
	}
	d := Docker{
		Version: info.Version, APIVersion: info.APIVersion,
		CgroupDriver: info.CgroupDriver, CgroupVersion: info.CgroupVersion,
		StorageDriver: info.StorageDriver, RootDir: info.RootDir, ContainerdDir: info.ContainerdDir(),
		Runtimes: info.Runtimes, DefaultRuntime: info.DefaultRuntime,
		CDIDirs: info.CDISpecDirs, CDIDevices: info.CDIDevices,
	}
	// An engine that supports CDI names the directories, and since 28.2 the devices.
	d.CDI = len(d.CDIDirs) > 0
	if d.CDI && len(d.CDIDevices) == 0 {
		d.CDIDevices, err = cdiDevices(t, d.CDIDirs)
	}
	return d, err
}
