package inventory

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
)

const dockerConfig = "etc/docker/daemon.json"

// askDocker asks the engine about itself. A missing engine is not an error if Docker is not
// installed.
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
		d.CDIDirs = DefaultCDIDirs()
	}
	d.CDIDevices, err = cdiDevices(t, d.CDIDirs)
	return d, err
}

// cdiByVersion reports whether an engine of a version supports CDI devices: from 28.2 on
// unless switched off, from 25.0 on if switched on.
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

// cdiFeature returns the switch features.cdi of the engine's daemon.json.
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
