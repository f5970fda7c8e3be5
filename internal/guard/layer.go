package guard

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/moby/moby/api/types/container"
)

// onDisk makes a container write only to a job's directory on the slot's disk. It is called before the start.
func (g *guard) onDisk(ctx context.Context, in container.InspectResponse, readOnly bool, top string) error {
	if g.disk.dir == "" {
		return nil
	}
	for _, m := range in.Mounts {
		if m.Type == "volume" {
			return forbid("the image declares a volume at %.80q that was not there when the container was created; create the container again", m.Destination)
		}
	}
	if readOnly || in.GraphDriver == nil || in.GraphDriver.Name != "overlay2" {
		return nil // there is nothing to write to, or kbnode plan warns
	}
	layer, isDiff := strings.CutSuffix(in.GraphDriver.Data["UpperDir"], "/diff")
	if !isDiff || !filepath.IsAbs(layer) {
		return fmt.Errorf("find the container's layer: the engine says it is %.200q", in.GraphDriver.Data["UpperDir"])
	}
	return g.disk.cover(ctx, layer, filepath.Join(top, "layer"))
}

// cover mounts a directory of the slot's disk over the one in which the overlay2 driver keeps a container's
// layer, with a copy of what that holds before the container runs: the engine's own few files, and the
// directories on the way to the working directory. The engine then mounts the container's root from there,
// and unmounts it when it removes the container.
func (d *slotDisk) cover(ctx context.Context, layer, own string) error {
	if out, err := exec.CommandContext(ctx, "cp", "-a", "--", layer, own).CombinedOutput(); err != nil {
		return fmt.Errorf("copy the container's layer: %w: %.500s", err, out)
	}
	if err := d.bind(own, layer); err != nil {
		return fmt.Errorf("mount the container's layer: %w", err)
	}
	return nil
}
