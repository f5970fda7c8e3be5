package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

// DaemonJSON is the configuration file of Docker.
const DaemonJSON = "/etc/docker/daemon.json"

// Dockerd is the configuration of Docker: its file and its command line.
type Dockerd struct {
	Text    string
	Keys    map[string]json.RawMessage
	Problem string // why it would not start with this configuration
	args    []string
}

// Dockerd reads the configuration as it is now, not as it was when dockerd started. The
// command line is the process's, or else its unit's.
func (t Tree) Dockerd(pid int) Dockerd {
	d := Dockerd{args: t.Args(pid)}
	if pid <= 0 || d.args == nil {
		if commands, _, _ := t.UnitValues("docker.service", "ExecStart="); len(commands) > 0 {
			d.args = strings.Fields(commands[len(commands)-1])
		}
	}
	text, err := t.Read(DaemonJSON)
	d.Text = strings.TrimSpace(text)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return d
	case err != nil:
		d.Problem = err.Error()
	case d.Text == "":
		return d
	}
	if err := json.Unmarshal([]byte(text), &d.Keys); err != nil && d.Problem == "" {
		d.Problem = fmt.Sprintf("%s is not a JSON object: %s", DaemonJSON, err)
		if e, is := errors.AsType[*json.SyntaxError](err); is {
			line := 1 + strings.Count(text[:min(max(e.Offset-1, 0), int64(len(text)))], "\n")
			d.Problem = fmt.Sprintf("%s is not JSON: line %d: %s", DaemonJSON, line, err)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(d.Keys)) {
		if arg := d.Flag(key); arg != "" && d.Problem == "" {
			d.Problem = fmt.Sprintf("%s is set in %s and as %s on dockerd's command line; with both, Docker does not start", key, DaemonJSON, arg)
		}
	}
	return d
}

// Flag returns the command-line argument that sets the same as a key of the file, or "".
func (d Dockerd) Flag(key string) string {
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

// Has reports whether the file has a key.
func (d Dockerd) Has(key string) bool { _, is := d.Keys[key]; return is }

// Off reports whether a switch is set to false, in the file or on the command line.
func (d Dockerd) Off(key string) bool {
	return strings.TrimSpace(string(d.Keys[key])) == "false" || slices.Contains(d.args, "--"+key+"=false")
}
