package guard

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/machine/disk"
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
	if readOnly {
		return nil // there is nothing to write to
	}
	if err := writeEtc(top, in); err != nil {
		return fmt.Errorf("write the container's files: %w", err)
	}
	if in.GraphDriver == nil || in.GraphDriver.Name != "overlay2" {
		return nil // kbnode plan warns
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
	if err := disk.Copy(ctx, layer, own); err != nil {
		return fmt.Errorf("prepare the container's layer: %w", err)
	}
	if err := d.bind(own, layer); err != nil {
		return fmt.Errorf("mount the container's layer: %w", err)
	}
	return nil
}

// etcFiles are the files that Docker makes for a container and mounts writable.
var etcFiles = []string{"hosts", "hostname", "resolv.conf"}

// writeEtc writes etcFiles as Docker does. The container's own name leads to the loopback
// interface, as its address is not known yet.
func writeEtc(dir string, in container.InspectResponse) error {
	host := in.Config.Hostname
	names := host
	if in.Config.Domainname != "" {
		names = host + "." + in.Config.Domainname + " " + host
	}
	resolv, err := resolvConf(string(in.HostConfig.NetworkMode))
	for name, text := range map[string]string{
		"hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n" +
			"ff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n127.0.1.1\t" + names + "\n",
		"hostname":    host + "\n",
		"resolv.conf": resolv,
	} {
		path := filepath.Join(dir, name)
		if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
			continue // the job mounts its own
		}
		err = errors.Join(err, os.WriteFile(path, []byte(text), 0o644)) //nolint:gosec // for all in the container to read
	}
	return err
}

// resolvConf names Docker's own resolver, which serves every network except the default one, and
// the host's search domains.
func resolvConf(network string) (string, error) {
	data, err := os.ReadFile("/etc/resolv.conf")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if network == "none" {
		return "", nil
	}
	var search string
	for line := range strings.Lines(string(data)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "search" && fields[1] != "." {
			search = "search " + strings.Join(fields[1:], " ") + "\n"
		}
	}
	return "nameserver 127.0.0.11\n" + search + "options ndots:0\n", nil
}
