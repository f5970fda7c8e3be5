package guard

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/noise"
	"github.com/gpu-mode/kbnode/internal/evaluate/witness"
	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/test/must"
)

const someRun = runPrefix + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"

// made is how many containers of jobs were made.
func (r *jobRig) made() (n int) {
	r.engine.mu.Lock()
	defer r.engine.mu.Unlock()
	for _, c := range r.engine.created {
		if c.Labels[jobLabel] != "" {
			n++
		}
	}
	return n
}

// TestOtherVersion starts no job that another version of kbnode sent.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	spec, err := rootSpec("0191").Marshal()
	must.Do(t, err)
	o := r.ask(t, slot.RequestRun, strings.Replace(string(spec), `{"kind"`, `{"payload":"","kind"`, 1))
	must.Equal(t, slot.Outcome{NodeFault: "the job comes from another version of kbnode than the slot; run it again"}, o)
	must.Equal(t, 0, r.made())
}

// TestEngineFaults end jobs as the node's fault, or go on.
func TestEngineFaults(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		fault  func(r *http.Request, nth int32) int // of the requests that it knows
		knows  string
		status int
		says   string
	}{
		"restarted behind its socket": {func(_ *http.Request, nth int32) int { return map[bool]int{true: -1}[nth == 1] }, "/wait", bootstrap.ExitNode, "the Docker engine was restarted"},
		"a start that breaks off":     {func(*http.Request, int32) int { return -1 }, "/start", bootstrap.ExitNode, "no Docker engine answers"},
		"a container that stays":      {func(*http.Request, int32) int { return 500 }, "DELETE /containers/" + strings.Repeat("0", 62) + "a1", 7, "nothing is uploaded: something may still run"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, nil)
			r.engine.forgets = row.knows == "/wait"
			var n atomic.Int32
			r.engine.fault = func(req *http.Request) int {
				if strings.Contains(req.Method+" "+req.URL.Path, row.knows) {
					return row.fault(req, n.Add(1))
				}
				return 0
			}
			r.expect(t, r.finish(t, r.start(t.Context())), row.status, row.says)
			if _, err := os.Stat(r.notes); strings.HasPrefix(row.knows, "DELETE") && err == nil {
				t.Error("it was uploaded")
			}
			if row.knows == "/start" && !r.engine.requested("DELETE /v1.45/containers/"+strings.Repeat("0", 62)+"a1") {
				t.Error("the container was left")
			}
		})
	}
}

// TestHeldContainer frees a container whose start never ends, as of one in which a terminal is in the place of
// the accounts: the engine can do nothing with it until the process that reads has ended.
func TestHeldContainer(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	kill := filepath.Join(r.cgroup, "docker-held.scope", "cgroup.kill")
	r.put(t, kill, "")
	r.engine.fault = func(req *http.Request) int {
		text, err := os.ReadFile(kill)
		held := err != nil || !strings.HasPrefix(string(text), "1")
		return map[bool]int{true: 500}[strings.HasSuffix(req.URL.Path, "/start") || req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "a1") && held]
	}
	r.expect(t, r.finish(t, r.start(t.Context())), bootstrap.ExitNode, "out of order")
	if len(r.engine.containers) > 0 {
		t.Errorf("left is %v", r.engine.containers)
	}
}

// TestNothingIsUploaded while a process may put links into the checkout, nor of a file that is too large. A job that
// succeeded then fails if that is the node's fault.
func TestNothingIsUploaded(t *testing.T) {
	t.Parallel()
	stays := func(r *jobRig, _ string) error {
		r.put(t, filepath.Join(r.cgroup, "docker-lost.scope", "cgroup.procs"), "1")
		return nil
	}
	tooLarge := func(_ *jobRig, dir string) error {
		file := filepath.Join(dir, "result.json")
		return errors.Join(os.WriteFile(file, nil, 0o600), os.Truncate(file, 1<<43))
	}
	for name, row := range map[string]struct {
		code   int
		paths  string
		leave  func(r *jobRig, dir string) error
		status int
		says   string
	}{
		"a process stays of one that failed":    {7, "result.json", stays, 7, "nothing is uploaded: something may still run: process 1 ("},
		"a process stays of one that succeeded": {0, "result.json", stays, bootstrap.ExitNode, "nothing is uploaded: something may still run: process 1 ("},
		"there is nothing to upload":            {0, "", stays, 0, "something may still run: process 1 ("},
		"a large file":                          {0, "result.json", tooLarge, 0, "upload files of at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, map[string]string{"BUILDKITE_ARTIFACT_PATHS": row.paths})
			r.engine.status = row.code
			done := r.start(t.Context())
			out := <-r.engine.attached
			must.Do(t, row.leave(r, r.checkout(t)))
			r.engine.end()
			_ = out.Close()
			r.expect(t, r.wait(t, done), row.status, row.says)
			if _, err := os.Stat(r.notes); err == nil {
				t.Error("it was uploaded")
			}
		})
	}
}

// TestNoRecord uploads the result without node.json, and not what the job put in its place.
func TestNoRecord(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, map[string]string{"BUILDKITE_ARTIFACT_PATHS": "*.json"}, asRoot) // whose jobs have none
	done := r.start(t.Context())
	out := <-r.engine.attached
	dir := r.checkout(t)
	must.Do(t, errors.Join(os.MkdirAll(filepath.Join(dir, "node.json", "deep"), 0o700), os.WriteFile(filepath.Join(dir, "result.json"), []byte("{}"), 0o600)))
	must.Do(t, os.Chmod(dir, 0))
	r.engine.end()
	_ = out.Close()
	r.wait(t, done)
	if dirs, _ := filepath.Glob(filepath.Join(r.policy.WorkRoot, runPrefix+"files-*")); len(dirs) == 1 {
		if info, err := os.Stat(dirs[0]); err != nil || info.Mode().Perm() != 0o755 {
			t.Error(info, err)
		}
	}
	files, err := filepath.Glob(filepath.Join(r.policy.WorkRoot, runPrefix+"files-*", "*"))
	if err != nil || len(files) != 1 || filepath.Base(files[0]) != "result.json" {
		t.Error(files, err)
	}
}

// TestImplausible puts what the runner says of a job's times into its node.json, and counts the job. What cannot be read is
// not the same as nothing.
func TestImplausible(t *testing.T) {
	t.Parallel()
	found := []witness.Finding{{Evaluation: "leaderboard", Case: "benchmark.0", Reason: "the mean is negative"}}
	body, err := witness.Encode(found)
	must.Do(t, err)
	for name, tt := range map[string]struct {
		body    string
		want    []witness.Finding
		counted bool
	}{
		"found":   {string(body), found, true},
		"nothing": {"null", nil, false},
		"cut":     {string(body[:20]), []witness.Finding{{Evaluation: "all evaluations", Reason: "what the runner found cannot be read"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, map[string]string{"BUILDKITE_ARTIFACT_PATHS": "*.json;**"})
			r.engine.status = 0
			done := r.start(t.Context())
			out := <-r.engine.attached
			must.Do(t, errors.Join(os.WriteFile(filepath.Join(r.checkout(t), witness.File), []byte(tt.body), 0o600),
				os.Symlink(witness.File, filepath.Join(r.checkout(t), "link"))))
			r.engine.end()
			_ = out.Close()
			r.wait(t, done)
			dirs, err := filepath.Glob(filepath.Join(r.policy.WorkRoot, runPrefix+"files-*"))
			if err != nil || len(dirs) != 1 {
				t.Fatal(dirs, err)
			}
			var rec noise.Record
			must.Do(t, json.Unmarshal([]byte(must.Read(t, filepath.Join(dirs[0], "node.json"))), &rec))
			must.Equal(t, noise.Image{Name: "docker.io/library/img:latest", ID: r.engine.created[0].Image}, rec.Image)
			must.Equal(t, tt.want, rec.Implausible)
			for _, name := range []string{witness.File, "link"} { // the upload would end at a link to nothing
				if _, err := os.Lstat(filepath.Join(dirs[0], name)); err == nil {
					t.Errorf("%s is uploaded, too", name)
				}
			}
			count, _ := os.ReadFile(filepath.Join(filepath.Dir(r.socket), "implausible"))
			must.Equal(t, map[bool]string{true: "1\n"}[tt.counted], string(count))
		})
	}
}

// TestGivePipeline gives the agent a file of the checkout and nothing else.
func TestGivePipeline(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		file string
		put  func(dir string) error
		want string // the file, or "" if it is refused
	}{
		"named":           {"ci/p.yml", func(dir string) error { return os.WriteFile(filepath.Join(dir, "ci", "p.yml"), nil, 0o600) }, "ci/p.yml"},
		"the usual place": {"", func(dir string) error { return os.WriteFile(filepath.Join(dir, "buildkite.yml"), nil, 0o600) }, "buildkite.yml"},
		"two of them": {"", func(dir string) error {
			return errors.Join(os.Mkdir(filepath.Join(dir, "buildkite"), 0o700), os.WriteFile(filepath.Join(dir, "buildkite.yml"), nil, 0o600), os.WriteFile(filepath.Join(dir, "buildkite", "pipeline.json"), nil, 0o600))
		}, ""},
		"a link":            {"ci/p.yml", func(dir string) error { return os.Symlink("../other", filepath.Join(dir, "ci", "p.yml")) }, "ci/p.yml"},
		"a link to outside": {"ci/p.yml", func(dir string) error { return os.Symlink("/etc/passwd", filepath.Join(dir, "ci", "p.yml")) }, ""},
		"a way to outside":  {"up/passwd", func(dir string) error { return os.Symlink("/etc", filepath.Join(dir, "up")) }, ""},
		"a pipe":            {"ci/p.yml", func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, "ci", "p.yml"), 0o600) }, ""},
		"a directory":       {"ci", func(string) error { return nil }, ""},
		"too large": {"ci/p.yml", func(dir string) error {
			return os.WriteFile(filepath.Join(dir, "ci", "p.yml"), make([]byte, job.MaxPipeline+1), 0o600)
		}, ""},
		"none": {"", func(string) error { return nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := &jobRun{top: filepath.Join(t.TempDir(), someRun), spec: &job.Spec{PipelineFile: row.file}}
			must.Do(t, errors.Join(os.MkdirAll(filepath.Join(r.checkout(), "ci"), 0o700), os.WriteFile(filepath.Join(r.checkout(), "other"), nil, 0o600), row.put(r.checkout())))
			o, err := r.givePipeline()
			if _, refused := errors.AsType[*refusedError](err); o.Pipeline != row.want || (err == nil) != (row.want != "") || err != nil && !refused {
				t.Errorf("%q, %v", o.Pipeline, err)
			}
			if row.want != "" {
				_, err = os.Stat(filepath.Join(o.Files, o.Pipeline))
			} else {
				_, err = os.Stat(r.checkout())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBrokenLog does not keep an engine busy whose log ends at once.
func TestBrokenLog(t *testing.T) {
	t.Parallel()
	r := newJobRig(t, nil)
	r.engine.logs = func(func(string)) {}
	done := r.start(t.Context())
	out := <-r.engine.attached
	_ = out.Close()
	logs := func() int { return r.engine.asked("/logs?") }
	must.Until(t, "the log to be read", func() bool { return logs() > 0 })
	time.Sleep(300 * time.Millisecond)
	if n := logs(); n > 3 {
		t.Errorf("the log was read %d times", n)
	}
	r.engine.end()
	r.wait(t, done)
}
