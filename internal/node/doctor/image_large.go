package doctor

import (
	"context"
	"encoding/json"
	"strings"

	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// imageLarge looks for images that are too large for the engine, also if it does not answer.
func imageLarge(ctx context.Context, m *Machine) Answer {
	root := dataRoot(readDaemon(ctx, m))
	large, err := docker.LargeImages(m.Path(root), m.Path(docker.Info{Snapshotter: true}.ContainerdDir()))
	if err != nil {
		return none("%s", lines(err))
	}
	var all []Finding
	for _, i := range large {
		name, path := i.ID, strings.TrimPrefix(i.Path, strings.TrimSuffix(m.Root, "/"))
		if i.Name != "" {
			name = text.Line(i.Name, maxShown)
		}
		all = append(all, warn("%s has a configuration of %d KiB, which Docker reads and keeps whenever it lists images, inspects or starts it", name, i.Size>>10).
			By("docker rmi -f %s", i.ID).
			Advise("if Docker does not start or answer any more, type sudo systemctl stop docker.socket docker; sudo rm %s; sudo systemctl start docker", text.ShellWord(path)))
	}
	return foundOr(all, ok("none has a configuration of more than 1 MiB"))
}

// dataRoot returns where Docker is configured to keep its data.
func dataRoot(d host.Dockerd) string {
	var dir string
	if json.Unmarshal(d.Keys["data-root"], &dir) == nil && dir != "" {
		return dir
	}
	if flag := d.Flag("data-root"); flag != "" {
		return flag[strings.IndexAny(flag, " =")+1:]
	}
	return "/var/lib/docker"
}
