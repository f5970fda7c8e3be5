package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/reconcile"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	daemonJSON   = "/etc/docker/daemon.json"
	validateTime = 5 * time.Second
)

// dockerd is the engine's configuration: its file and its command line.
type dockerd struct {
	text    string
	keys    map[string]json.RawMessage
	args    []string
	problem string // why it would not start with this configuration
}

// readDaemon reads the configuration as it is now, not as it was when dockerd started.
func readDaemon(ctx context.Context, m *Machine) dockerd {
	d := dockerd{args: dockerdArgs(ctx, m)}
	text, err := m.read(daemonJSON)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d
	case err != nil:
		d.problem = err.Error()
		return d
	}
	if d.text = strings.TrimSpace(text); d.text == "" {
		return d
	}
	if err := json.Unmarshal([]byte(text), &d.keys); err != nil {
		d.problem = fmt.Sprintf("%s is not a JSON object: %s", daemonJSON, err)
		if e, is := errors.AsType[*json.SyntaxError](err); is {
			line := 1 + strings.Count(text[:min(max(e.Offset-1, 0), int64(len(text)))], "\n")
			d.problem = fmt.Sprintf("%s is not JSON: line %d: %s", daemonJSON, line, err)
		}
		return d
	}
	for _, key := range slices.Sorted(maps.Keys(d.keys)) {
		if arg := d.flag(key); arg != "" {
			d.problem = fmt.Sprintf("%s is set in %s and as %s on dockerd's command line; with both, Docker does not start", key, daemonJSON, arg)
			return d
		}
	}
	return d
}

// startProblem returns why dockerd would not start, or "" if it would. It runs dockerd,
// which is slow, only if dockerd has not read the file yet.
func startProblem(ctx context.Context, m *Machine, check string) string {
	d := readDaemon(ctx, m)
	if d.problem != "" || d.text == "" {
		return d.problem
	}
	u, err := m.unit(ctx, dockerUnit)
	info, errStat := os.Stat(m.path(daemonJSON))
	if err != nil || errStat != nil || u.Running() && info.ModTime().Before(u.Since) {
		return ""
	}
	out, err := m.Source.Program(ctx, reconcile.Program{
		Unit: fmt.Sprintf("kbnode-%s-%d.service", check, os.Getpid()), Slice: "system.slice", Limit: validateTime,
		Argv: []string{"/bin/sh", "-c", "dockerd --validate --config-file=" + daemonJSON + " 2>&1 || true"},
	})
	// Engines before 23.0 do not know the flag, so their error says nothing about the file.
	_, why, bad := strings.Cut(string(out), "unable to configure the Docker daemon with file ")
	if err != nil || !bad {
		return ""
	}
	why, _, _ = strings.Cut(why, "\n")
	return text.Line(why, 300)
}

// dockerdArgs returns the command line of the running dockerd, or else of its unit.
func dockerdArgs(ctx context.Context, m *Machine) []string {
	if u, err := m.unit(ctx, dockerUnit); err == nil && u.MainPID > 0 {
		if text, err := m.read(fmt.Sprintf("/proc/%d/cmdline", u.MainPID)); err == nil && text != "" {
			return strings.Split(strings.TrimRight(text, "\x00"), "\x00")
		}
	}
	var texts []string
	for _, dir := range []string{"/etc/systemd/system", "/run/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"} {
		if text, err := m.read(dir + "/" + dockerUnit); err == nil {
			texts = append(texts, text)
			break
		}
	}
	drops, _ := filepath.Glob(m.path("/etc/systemd/system/docker.service.d/*.conf"))
	for _, name := range drops {
		text, _ := m.read("/etc/systemd/system/docker.service.d/" + filepath.Base(name))
		texts = append(texts, text)
	}
	var args []string
	for line := range strings.Lines(strings.Join(texts, "\n")) {
		if command, is := strings.CutPrefix(strings.TrimSpace(line), "ExecStart="); is {
			args = strings.Fields(command)
		}
	}
	return args
}

// flag returns the command-line argument that sets the same as a key of the file, or "".
func (d dockerd) flag(key string) string {
	names := []string{"--" + key}
	if one, is := strings.CutSuffix(key, "ies"); is {
		names = append(names, "--"+one+"y")
	} else if one, is := strings.CutSuffix(key, "s"); is {
		names = append(names, "--"+one)
	}
	if key == "hosts" {
		names = append(names, "-H")
	}
	for i, arg := range d.args {
		name, _, set := strings.Cut(arg, "=")
		switch {
		case !slices.Contains(names, name):
		case !set && i+1 < len(d.args) && !strings.HasPrefix(d.args[i+1], "-"):
			return arg + " " + d.args[i+1]
		default:
			return arg
		}
	}
	return ""
}

func (d dockerd) has(key string) bool { _, is := d.keys[key]; return is }

// off reports whether a switch is set to false, in the file or on the command line.
func (d dockerd) off(key string) bool {
	return strings.TrimSpace(string(d.keys[key])) == "false" || slices.Contains(d.args, "--"+key+"=false")
}

// add returns a command that adds members to the file, which must not have them yet. The
// rest of the file may be secret and is not repeated.
func (d dockerd) add(members string) string {
	if len(d.keys) == 0 {
		return fmt.Sprintf("mkdir -p /etc/docker && echo '{%s}' >%s", members, daemonJSON)
	}
	return fmt.Sprintf("sed -i '0,/{/s//{%s, /' %s", members, daemonJSON)
}

// word quotes a name as one word for a shell.
func word(name string) string {
	if strings.ContainsFunc(name, func(r rune) bool {
		return !strings.ContainsRune("/._-:@", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) {
		return "'" + strings.ReplaceAll(name, "'", `'\''`) + "'"
	}
	return name
}
