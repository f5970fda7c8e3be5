package inventory

import (
	"cmp"
	"context"
	"errors"
	"os"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/docker"
)

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
	// An engine that supports CDI names the directories, and since 28.2 the devices.
	d.CDI = len(d.CDIDirs) > 0
	if d.CDI && len(d.CDIDevices) == 0 {
		d.CDIDevices, err = cdiDevices(t, d.CDIDirs)
	}
	return d, err
}
