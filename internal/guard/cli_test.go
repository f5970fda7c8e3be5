package guard

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandLine runs the real docker command line, if there is one, against the guard and the
// fake engine.
func TestCommandLine(t *testing.T) {
	t.Parallel()
	docker, err := exec.LookPath("docker")
	if err != nil {
		t.Skip("no docker command line on this machine")
	}
	home := t.TempDir()
	run := func(t *testing.T, r *rig, args ...string) (stdout, stderr string, code int) {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), docker, args...)
		cmd.Env = []string{"DOCKER_HOST=unix://" + r.socket, "DOCKER_CONFIG=" + home, "PATH=" + os.Getenv("PATH")}
		cmd.Stdin = strings.NewReader("typed\n")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		err := cmd.Run()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code = exit.ExitCode()
		} else if err != nil {
			t.Fatal(err)
		}
		return out.String(), errs.String(), code
	}

	t.Run("run in the shape of the docker plugin", func(t *testing.T) {
		t.Parallel()
		r := newRig(t)
		heard := make(chan string, 1)
		go func() { // the container echoes its input and exits with 7
			s := <-r.engine.attached
			said, _ := io.ReadAll(s.r)
			heard <- string(said)
			_, _ = io.WriteString(s, frame("bye\n"))
			_ = s.Close()
			close(r.engine.exit)
		}()
		checkout := filepath.Join(r.policy.WorkRoot, "checkout")
		out, errs, code := run(t, r, "run", "-i", "--rm", "--init", "--gpus", "all", "--cpus", "8", "--memory", "1g", "--shm-size", "1g",
			"--volume", checkout+":/workdir", "--workdir", "/workdir", "--env", "CUDA_VISIBLE_DEVICES=3", "--env", "KERNELBOT_RUN_ID=1",
			"--label", "com.buildkite.job-id=1", "--user", "0:0", "img", "/bin/sh", "-e", "-c", "true")
		if out != "hello\nbye\n" || code != 7 {
			t.Errorf("prints %q and exits with %d: %s", out, code, errs)
		}
		if s := <-heard; s != "typed\n" {
			t.Errorf("the container heard %q", s)
		}
		h := r.engine.created[0].HostConfig
		if h.CgroupParent != r.policy.Slice || len(h.DeviceRequests) != 1 || h.DeviceRequests[0].DeviceIDs[0] != r.policy.CDIDevices[0] || h.Memory != 1<<30 {
			t.Errorf("the engine made %+v", h)
		}
	})

	const anyCode = -1 // versions of the command line differ
	r := newRig(t)
	own := r.create(t, "job")
	r.engine.add(neighbour, "kbnode-gpu1-job", "buildkite-gpu1.slice", "1")
	for name, row := range map[string]struct {
		args []string
		out  string // on stdout or stderr
		code int
	}{
		"run --privileged": {[]string{"run", "--rm", "--privileged", "img"}, "a job's container cannot be privileged", 125},
		"run with a mount": {[]string{"run", "--rm", "-v", "/:/host", "img"}, "a job can mount only", 125},
		"pull":             {[]string{"pull", "img:1"}, "img:1", 0},
		"ps":               {[]string{"ps", "-q", "--filter", "label=com.buildkite.job-id=1"}, own[:12], 0},
		"inspect":          {[]string{"inspect", "--format", "{{.Id}}", "job"}, own, 0},
		"logs":             {[]string{"logs", "job"}, "", 0},
		"stop":             {[]string{"stop", own[:63]}, own[:63], 0},
		"version":          {[]string{"version", "--format", "{{.Server.Version}}"}, "26.1.5", 0},
		"info":             {[]string{"info", "--format", "{{.Name}} {{.NCPU}}"}, "gpu0 4", 0},
		"network ls":       {[]string{"network", "ls", "-q", "--filter", "name=bridge"}, "bridge", 0},
		"image inspect":    {[]string{"image", "inspect", "--format", "{{.Id}}", "img"}, "sha256:1", 0},
		"stop a neighbour": {[]string{"stop", neighbour}, "No such container", 1},
		"rm a neighbour":   {[]string{"rm", "-f", "kbnode-gpu1-job"}, "No such container", anyCode},
		"exec":             {[]string{"exec", "job", "ls"}, "is not available to jobs", 1},
		"volume create":    {[]string{"volume", "create", "x"}, "is not available to jobs", 1},
		"cp":               {[]string{"cp", "job:/etc/passwd", "-"}, "is not available to jobs", 1},
		"update":           {[]string{"update", "--cpus", "64", "job"}, "is not available to jobs", 1},
	} {
		t.Run(name, func(t *testing.T) {
			out, errs, code := run(t, r, row.args...)
			if !strings.Contains(out+errs, row.out) || (row.code != anyCode && code != row.code) {
				t.Errorf("exits with %d: %s%s, want %d and %q", code, out, errs, row.code, row.out)
			}
		})
	}
	t.Run("rm", func(t *testing.T) {
		if out, errs, code := run(t, r, "rm", "-fv", "job"); code != 0 {
			t.Errorf("exits with %d: %s%s", code, out, errs)
		}
		if _, there := r.engine.containers[own]; there {
			t.Error("the container is still there")
		}
		if _, there := r.engine.containers[neighbour]; !there {
			t.Error("the neighbour's container is gone")
		}
	})
}
