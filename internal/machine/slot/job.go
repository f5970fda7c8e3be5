package slot

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Bounds on what a job's processes can make kbnode read.
const (
	maxProcs    = 4096      // processes of a unit that are examined
	maxEnviron  = 4 << 20   // bytes; Linux limits arguments and environment to 6 MiB at most
	maxProcFile = 256 << 10 // bytes of any other file of /proc or /sys/fs/cgroup
	maxField    = 512       // characters of a value that is shown
)

// Job is what an agent is running. All but PID and Since come from the job's environment,
// so they are only for display.
type Job struct {
	ID       string    `json:"id"`
	Build    string    `json:"build,omitempty"` // number
	BuildURL string    `json:"build_url,omitempty"`
	Pipeline string    `json:"pipeline,omitempty"`
	Since    time.Time `json:"since,omitzero"`
	PID      int       `json:"pid"` // the process that runs it
}

// CurrentJob finds the job that an agent runs: the oldest process in the cgroup of its
// unit, other than the agent itself, that has a BUILDKITE_JOB_ID. It returns nil if there
// is none. The cgroup is a path as in systemd's ControlGroup.
func CurrentJob(root, cgroup string, mainPID int) (*Job, error) {
	procs, err := limit.ReadFile(filepath.Join(root, "sys/fs/cgroup", cgroup, "cgroup.procs"), maxProcFile)
	if host.Ended(err) {
		return nil, nil // the unit is not running
	}
	if err != nil {
		return nil, fmt.Errorf("read processes of %s: %w", cgroup, err)
	}
	var job *Job
	var oldest int64
	for i, field := range strings.Fields(string(procs)) {
		pid, err := strconv.Atoi(field)
		if err != nil || pid <= 0 || pid == mainPID {
			continue
		}
		if i >= maxProcs {
			break
		}
		env, err := Environ(root, pid)
		if host.Ended(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		start, err := host.Tree{Root: root}.StartTicks(pid)
		if err != nil || env["BUILDKITE_JOB_ID"] == "" {
			continue
		}
		if job == nil || start < oldest {
			oldest = start
			job = &Job{
				ID:       env["BUILDKITE_JOB_ID"],
				Build:    env["BUILDKITE_BUILD_NUMBER"],
				BuildURL: env["BUILDKITE_BUILD_URL"],
				Pipeline: env["BUILDKITE_PIPELINE_SLUG"],
				PID:      pid,
			}
		}
	}
	if job != nil {
		job.Since = sinceBoot(root, oldest)
	}
	return job, nil
}

// Containers returns the Docker containers that run in a slice: the names of the
// docker-*.scope cgroups in it that have processes.
func Containers(root, slice string) ([]string, error) {
	dir := filepath.Join(root, "sys/fs/cgroup", slice)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list cgroup %s: %w", slice, err)
	}
	var found []string
	for _, e := range entries {
		if ok, _ := path.Match("docker-*.scope", e.Name()); !ok || !e.IsDir() {
			continue
		}
		populated, err := Populated(root, filepath.Join(slice, e.Name()))
		if err != nil {
			return nil, err
		}
		if populated {
			found = append(found, e.Name())
		}
	}
	return found, nil
}

// Populated reports whether a cgroup, or one below it, has processes. One that is gone has none.
func Populated(root, cgroup string) (bool, error) {
	events, err := limit.ReadFile(filepath.Join(root, "sys/fs/cgroup", cgroup, "cgroup.events"), maxProcFile)
	if host.Ended(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("read state of cgroup %s: %w", cgroup, err)
	}
	return slices.Contains(strings.Split(string(events), "\n"), "populated 1"), nil
}

// Environ returns the variables that a process was started with, cut to a length that can
// be shown and without control characters. It only keeps names that begin with BUILDKITE_
// and KBNODE_, and no token. The map is nil for a process that is about to run its
// program, which has no environment.
func Environ(root string, pid int) (map[string]string, error) {
	data, err := limit.ReadFile(filepath.Join(root, "proc", strconv.Itoa(pid), "environ"), maxEnviron)
	if err != nil {
		return nil, fmt.Errorf("read environment of process %d: %w", pid, err)
	}
	if len(data) == 0 {
		return nil, nil //nolint:nilnil // no environment yet
	}
	env := map[string]string{}
	for v := range bytes.SplitSeq(data, []byte{0}) {
		name, value, ok := strings.Cut(string(v[:min(len(v), maxField)]), "=")
		if !ok || strings.Contains(name, "TOKEN") {
			continue
		}
		if strings.HasPrefix(name, "BUILDKITE_") || strings.HasPrefix(name, "KBNODE_") {
			env[name] = text.Line(value, maxField)
		}
	}
	return env, nil
}

func sinceBoot(root string, ticks int64) time.Time {
	stat, err := limit.ReadFile(filepath.Join(root, "proc/stat"), 4<<20)
	if err != nil {
		return time.Time{}
	}
	for line := range strings.Lines(string(stat)) {
		if text, ok := strings.CutPrefix(line, "btime "); ok {
			boot, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
			if err != nil {
				return time.Time{}
			}
			return time.Unix(boot+ticks/host.UserHz, ticks%host.UserHz*int64(time.Second/host.UserHz)).UTC()
		}
	}
	return time.Time{}
}
