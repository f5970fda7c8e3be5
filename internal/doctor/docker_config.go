package doctor

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/systemd"
	"github.com/gpu-mode/kbnode/internal/text"
)

// validateTime limits dockerd --validate.
const validateTime = 5 * time.Second

// readDaemon reads Docker's configuration.
func readDaemon(ctx context.Context, m *Machine) host.Dockerd {
	u, _ := m.unit(ctx, dockerUnit)
	return m.Dockerd(u.MainPID)
}

// startProblem returns why dockerd would not start, or "" if it would. It runs dockerd,
// which is slow, only if dockerd has not read the file yet.
func startProblem(ctx context.Context, m *Machine, check string) string {
	d := readDaemon(ctx, m)
	if d.Problem != "" || d.Text == "" {
		return d.Problem
	}
	u, err := m.unit(ctx, dockerUnit)
	info, errStat := os.Stat(m.Path(host.DaemonJSON))
	if err != nil || errStat != nil || u.Running() && info.ModTime().Before(u.Since) {
		return ""
	}
	out, err := m.Source.Program(ctx, systemd.Program{
		Unit: fmt.Sprintf("kbnode-%s-%d.service", check, os.Getpid()), Slice: "system.slice", Limit: validateTime,
		Argv: []string{"/bin/sh", "-c", "dockerd --validate --config-file=" + host.DaemonJSON + " 2>&1 || true"},
	})
	// Engines before 23.0 do not know the flag, so their error says nothing about the file.
	_, why, bad := strings.Cut(string(out), "unable to configure the Docker daemon with file ")
	if err != nil || !bad {
		return ""
	}
	why, _, _ = strings.Cut(why, "\n")
	return text.Line(why, 300)
}

// addKeys returns a command that adds members to the file, which must not have them yet. The
// rest of the file may be secret and is not repeated.
func addKeys(d host.Dockerd, members string) string {
	if len(d.Keys) == 0 {
		return fmt.Sprintf("mkdir -p /etc/docker && echo '{%s}' >%s", members, host.DaemonJSON)
	}
	return fmt.Sprintf("sed -i '0,/{/s//{%s, /' %s", members, host.DaemonJSON)
}

// withoutFlag says how to remove an argument of dockerd.
func withoutFlag(f Finding, arg string) Finding {
	return f.Advise("dockerd is started with %s: run sudo systemctl edit --full docker, remove it, then run sudo systemctl restart docker", arg)
}
