package inventory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/internal/docker"
)

const (
	defaultDockerSocket = "/run/docker.sock"
	dockerConfig        = "etc/docker/daemon.json"
	maxSpecs            = 64 // CDI files read per directory
)

// askDocker asks the engine what it is. No engine is no error where Docker is
// not installed.
func askDocker(ctx context.Context, t tree, socket string) (Docker, error) {
	socket = cmp.Or(socket, defaultDockerSocket)
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
		StorageDriver: info.StorageDriver, RootDir: info.RootDir,
		Runtimes: info.Runtimes, DefaultRuntime: info.DefaultRuntime,
		CDIDirs: info.CDISpecDirs, CDIDevices: info.CDIDevices,
	}
	wanted, configured := cdiFeature(t.text(dockerConfig))
	d.CDI = len(d.CDIDirs) > 0 || cdiByVersion(d.Version, wanted, configured)
	if !d.CDI || len(d.CDIDevices) > 0 {
		return d, nil
	}
	if len(d.CDIDirs) == 0 {
		d.CDIDirs = []string{"/etc/cdi", "/var/run/cdi"} // the engine's own default
	}
	d.CDIDevices, err = cdiDevices(t, d.CDIDirs)
	return d, err
}

// cdiByVersion tells whether an engine of a version takes CDI devices: from
// 28.2 on unless that is switched off, from 25.0 on where it is switched on.
func cdiByVersion(version string, wanted, configured bool) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err := strconv.Atoi(parts[0])
	minor, errMinor := strconv.Atoi(parts[1])
	if err != nil || errMinor != nil {
		return false
	}
	if major > 28 || major == 28 && minor >= 2 {
		return wanted || !configured
	}
	return major >= 25 && wanted
}

// cdiFeature is the switch features.cdi of the engine's daemon.json.
func cdiFeature(config string) (on, set bool) {
	var c struct {
		Features map[string]bool `json:"features"`
	}
	if err := json.Unmarshal([]byte(config), &c); err != nil {
		return false, false
	}
	on, set = c.Features["cdi"]
	return on, set
}

// cdiDevices are the fully qualified names, such as nvidia.com/gpu=0, of the
// devices in CDI's specification files. One broken file does not hide the rest.
func cdiDevices(t tree, dirs []string) ([]string, error) {
	var names []string
	var errs []error
	for _, dir := range dirs {
		files := slices.DeleteFunc(t.names(strings.TrimPrefix(dir, "/")), func(name string) bool {
			ext := path.Ext(name)
			return ext != ".json" && ext != ".yaml" // what CDI itself heeds
		})
		for _, name := range files[:min(len(files), maxSpecs)] {
			found, err := cdiNames(t.text(path.Join(dir, name)[1:]))
			if err != nil {
				errs = append(errs, fmt.Errorf("read CDI specification %s: %w", path.Join(dir, name), err))
			}
			names = append(names, found...)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), errors.Join(errs...)
}

func cdiNames(text string) ([]string, error) {
	var spec struct {
		Kind    string `yaml:"kind"`
		Devices []struct {
			Name string `yaml:"name"`
		} `yaml:"devices"`
	}
	if err := yaml.Unmarshal([]byte(text), &spec); err != nil { // JSON is YAML
		return nil, err
	}
	if spec.Kind == "" {
		return nil, errors.New("it names no kind")
	}
	names := make([]string, 0, len(spec.Devices))
	for _, d := range spec.Devices {
		names = append(names, spec.Kind+"="+d.Name)
	}
	return names, nil
}
