package detect

import (
	"cmp"
	"context"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// askDocker asks the engine about itself. A missing engine is not an error if Docker is not
// installed. With a version, an error is about CDI's files.
func askDocker(ctx context.Context, t tree, socket string) (inventory.Docker, error) {
	socket = cmp.Or(socket, config.DefaultDockerSocket)
	engine, err := docker.New(socket)
	if err != nil {
		return inventory.Docker{}, err
	}
	defer engine.Close() //nolint:errcheck // only asked
	info, err := engine.Info(ctx)
	if err != nil {
		if _, missing := os.Stat(socket); errors.Is(missing, os.ErrNotExist) && findProgram(t, "dockerd") == "" {
			return inventory.Docker{}, nil
		}
		return inventory.Docker{}, err
	}
	d := inventory.Docker{
		Version: info.Version, APIVersion: info.APIVersion,
		CgroupDriver: info.CgroupDriver, CgroupVersion: info.CgroupVersion,
		StorageDriver: info.StorageDriver, RootDir: info.RootDir, ContainerdDir: info.ContainerdDir(),
		Runtimes: info.Runtimes, DefaultRuntime: info.DefaultRuntime,
		CDIDirs: info.CDISpecDirs, CDIDevices: info.CDIDevices,
	}
	// An engine that supports CDI names the directories, and since 28.2 the devices: there, none is none.
	d.CDI = len(d.CDIDirs) > 0
	if d.CDI && len(d.CDIDevices) == 0 && !listsDevices(d.APIVersion) {
		d.CDIDevices, err = cdiDevices(t, d.CDIDirs)
	}
	return d, err
}

// listsDevices reports whether an engine of an API version lists its CDI devices.
func listsDevices(api string) bool {
	major, minor, _ := strings.Cut(api, ".")
	n, err := strconv.Atoi(minor)
	return err == nil && (major == "1" && n >= 50 || major != "1")
}
