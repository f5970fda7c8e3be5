//go:build vm

package vm_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/examples"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

const (
	// debianMirror is a directory of the guest, served on the bridge that builds use.
	debianMirror = "http://172.17.0.1:8000"
	debianBase   = "debian-as-fetched:13"
	buildCPU     = "kbnode image build --variant cpu --build-arg BASE=" + debianBase
)

// inCPP is the example of prefix sums in C++, which the submission compiles.
const inCPP = `import ctypes, os, subprocess

SOURCE = """
extern "C" void prefix(long long *sums, const long long *data, long long n) {
    long long sum = 0;
    for (long long i = 0; i < n; i++) sums[i] = sum += data[i];
}
"""
if not os.path.exists("prefix.so"):
    subprocess.run(["g++", "-O2", "-shared", "-fPIC", "-x", "c++", "-", "-o", "prefix.so"], input=SOURCE.encode(), check=True)
prefix = ctypes.CDLL("./prefix.so").prefix


def custom_kernel(data):
    array = ctypes.c_longlong * len(data)
    sums = array()
    prefix(sums, array(*data), ctypes.c_longlong(len(data)))
    return list(sums)
`

const inNumPy = `import numpy


def custom_kernel(data):
    return numpy.cumsum(numpy.array(data, dtype=numpy.int64)).tolist()
`

// prefixSums is a payload of the example with a submission, "" for its own.
func prefixSums(t *testing.T, submission string) []byte {
	t.Helper()
	sources := map[string]string{}
	for name, file := range map[string]string{"eval.py": "eval.py", "reference.py": "prefix_python/reference.py", "submission.py": "prefix_python/submission.py"} {
		text, err := examples.Files.ReadFile(file)
		must.Do(t, err)
		sources[name] = string(text)
	}
	if submission != "" {
		sources["submission.py"] = submission
	}
	return config(t, "submission.py", map[string]any{"sources": sources, "tests": []any{map[string]int{"size": 1000, "seed": 3}}})
}

// serveDebian brings the guest a base image and the mirror that it is made for.
func serveDebian(t *testing.T, m *vm.Machine) {
	t.Helper()
	dir, err := vm.Debian(t.Context(), debianMirror, "g++", "python3", "python3-numpy")
	must.Do(t, err)
	m.Sh("mkdir -p /srv/debs")
	for file, into := range map[string][]string{"base.tar": {"docker", "import", "-", debianBase}, "debs.tar": {"tar", "-xC", "/srv/debs"}} {
		f, err := os.Open(filepath.Join(dir, file))
		must.Do(t, err)
		begin := time.Now()
		r, err := m.VM.Run(t.Context(), f, into...)
		_ = f.Close()
		if err != nil || r.Code != 0 {
			t.Fatalf("%s: %v, exit %d: %s", file, err, r.Code, r.Stderr)
		}
		t.Logf("%s is there after %s", file, time.Since(begin).Round(time.Second))
	}
	m.Sh("systemd-run -q --unit mirror busybox httpd -f -p 172.17.0.1:8000 -h /srv/debs")
	m.Wait("the mirror", "curl -sf -o /dev/null "+debianMirror+"/Packages.gz")
}

// TestImageBuild builds kbnode's own image for nodes without GPUs, of Debian's
// packages, and evaluates submissions in it. A build that fails changes nothing.
func TestImageBuild(t *testing.T) {
	t.Parallel()
	m := installed(t)
	serveDebian(t, m)
	m.Sh("docker tag kernelbot-test:latest " + evalImage + "; printf 'image:\n  name: " + evalImage + "\n' >>/etc/kbnode/config.yaml; systemctl reload kbnode")
	inUse := func() string { return m.Sh("docker image inspect -f '{{.Id}}' " + evalImage) }
	before := inUse()
	// nothing fails the test where a build that failed left anything.
	nothing := func(t *testing.T) {
		t.Helper()
		m.Wait("the end of the build's container", "! docker ps -aq | grep -q .")
		must.Equal(t, before, inUse())
		if r := runStep(m, 4, step(4, evalImage, "echo as it was", "")); r.Code != 0 || !strings.Contains(r.Stdout, "as it was") {
			t.Errorf("a job: exit %d: %s", r.Code, r.Stdout)
		}
	}
	begun := func() *vm.Process {
		p := m.Start(strings.Fields(buildCPU)...)
		m.Wait("the packages", "docker ps -q | xargs -r docker top | grep -q 'apt-get install'")
		return p
	}
	t.Run("killed", func(t *testing.T) {
		p := begun()
		p.Signal(9)
		p.Wait()
		nothing(t)
	})
	t.Run("full disk", func(t *testing.T) {
		p := begun()
		// What is free for root, which has more than others.
		m.Sh("fallocate -l $(( ($(stat -f -c %f /) - 10000) * $(stat -f -c %S /) )) /fill")
		r := p.Wait()
		if text := strings.ToLower(r.Stdout + r.Stderr); r.Code != 1 || !strings.Contains(text, "free space") && !strings.Contains(text, "no space left") {
			t.Errorf("exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		if r := m.Try(buildCPU); r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, "the engine's disk is full") {
			t.Errorf("on a full disk: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
		m.Sh("rm /fill")
		nothing(t)
	})

	t.Run("built", func(t *testing.T) {
		begin := time.Now()
		r := m.Start(strings.Fields(buildCPU)...).WaitFor(3 * vm.Patience)
		t.Logf("after %s:\n%s%s", time.Since(begin).Round(time.Second), r.Stdout, r.Stderr)
		if r.Code != 0 || !strings.Contains(r.Stderr, "from kbnode's cpu.Dockerfile") || !strings.Contains(r.Stdout, evalImage+" is now sha256:") {
			t.Fatalf("exit %d", r.Code)
		}
		if inUse() == before {
			t.Fatal("jobs get the image that they had")
		}
		t.Log(m.Sh("kbnode image list; docker history --format '{{.Size}} {{.CreatedBy}}' " + evalImage))
		if got := m.Sh(`docker image inspect -f '{{index .Config.Labels "org.opencontainers.image.base.name"}} {{.Config.User}}' ` + evalImage); strings.TrimSpace(got) != debianBase {
			t.Errorf("base and user are %q", got)
		}
		must.Equal(t, "", m.Sh("docker run --rm "+evalImage+" sh -c 'find /var/lib/apt/lists /var/cache/apt /var/log -type f'"))
		if r := m.Try(buildCPU); r.Code != 0 || !strings.Contains(r.Stdout, "the current image is the same") {
			t.Errorf("again: exit %d: %s%s", r.Code, r.Stdout, r.Stderr)
		}
	})

	t.Run("evaluates", func(t *testing.T) {
		p := pipelines{evaluations{m: m}}
		wrong, err := examples.Files.ReadFile("prefix_python/wrong.py")
		must.Do(t, err)
		submissions := []struct {
			name, text string
			passes     bool
		}{{"Python", "", true}, {"NumPy", inNumPy, true}, {"C++", inCPP, true}, {"wrong", string(wrong), false}}
		var builds []string
		for slot, s := range submissions {
			builds = append(builds, p.submit(slot, pipeline.Eval, evalImage, prefixSums(t, s.text)))
		}
		for i, s := range submissions {
			r := p.wait(t, builds[i], "passed")
			p.profiled(t, builds[i], "strict")
			if run := r.Result.Runs["test"].Run; !r.Result.Success || run == nil || run.Passed != s.passes {
				text, _ := json.Marshal(run)
				t.Errorf("%s: success %v, %s", s.name, r.Result.Success, text)
			}
		}
	})
}
