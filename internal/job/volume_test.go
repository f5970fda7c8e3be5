package job_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
)

// TestVolumeAdvice tests what an author learns about mounts of public pipelines.
func TestVolumeAdvice(t *testing.T) {
	t.Parallel()
	for volume, want := range map[string]string{
		"/dev/shm:/dev/shm":                                 "set shm-size",
		"/dev/shm":                                          "set shm-size",
		"/dev/nvidiactl:/dev/nvidiactl":                     "the devices of its slot's GPUs; leave it out",
		"/dev/nvidia0":                                      "the devices of its slot's GPUs; leave it out",
		"/dev/kfd:/dev/kfd":                                 "the devices of its slot's GPUs; leave it out",
		"/dev/dri:/dev/dri":                                 "the devices of its slot's GPUs; leave it out",
		"/dev/fuse:/dev/fuse":                               "no other devices",
		"/usr/bin/nvidia-smi:/usr/bin/nvidia-smi":           "the driver's libraries and programs",
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1:/x":         "the driver's libraries and programs",
		"/usr/local/cuda:/usr/local/cuda":                   "have CUDA itself in the image",
		"/var/run/nvidia-persistenced/socket:/x":            "the driver's libraries and programs",
		"/dev/nvidia-caps:/dev/nvidia-caps":                 "the devices of its slot's GPUs",
		"/dev/infiniband:/dev/infiniband":                   "the devices of its slot's GPUs",
		"/opt/rocm:/opt/rocm":                               "have ROCm in the image",
		"/var/run/docker.sock:/var/run/docker.sock":         "cannot use the node's Docker",
		"/run/docker.sock:/var/run/docker.sock:ro":          "cannot use the node's Docker",
		"/usr/bin/docker:/usr/bin/docker":                   "cannot use the node's Docker",
		"/root/.docker:/root/.docker":                       "cannot use the node's Docker",
		"/usr/bin/buildkite-agent:/usr/bin/buildkite-agent": "write mount-buildkite-agent: true",
		"/usr/local/bin/buildkite-agent:/bin/a":             "write mount-buildkite-agent: true",
		"/root/.ssh:/root/.ssh:ro":                          "no keys or logins",
		"~/.aws:/root/.aws":                                 "no keys or logins",
		"/etc/localtime:/etc/localtime:ro":                  "set TZ in environment",
		"/etc/passwd:/etc/passwd:ro":                        "a container has its own",
		"/lib/modules:/lib/modules":                         "cannot see the node's system",
		"/:/host":                                           "cannot see the node's system",
		"/proc:/host/proc":                                  "cannot see the node's system",
		"/root/.cache/huggingface:/root/.cache/huggingface": "copy what it needs into the image",
		"~/.cache:/root/.cache":                             "copy what it needs into the image",
		"/mnt/models:/models":                               "copy what it needs into the image",
		"/tmp:/tmp":                                         "write tmpfs: [/tmp]",
		"$PWD:/app":                                         "such as .:/workdir",
		"${BUILDKITE_BUILD_CHECKOUT_PATH}:/app":             "such as .:/workdir",
		"/srv/x:/x":                                         "copy it into the image",
		"/node_modules":                                     "an anonymous volume; write tmpfs: [/node_modules]",
		"cache:/cache":                                      "copy what it needs into the image",
		"modules:/app/node_modules":                         "a named volume",
		"data/x:/x":                                         "write ./ before it",
		"type=bind,source=/x,target=/y":                     "is not source:target",
		"./x":                                               "is not source:target",
		"../x:/x":                                           "has a .. element",
		"/dev/../etc:/x":                                    "has a .. element",
		"./a:/b:rw:ro":                                      "is not source:target",
	} {
		_, err := job.Read(attack(jobtest.Options(fmt.Sprintf(`"image":"a","volumes":[%q]`, volume))))
		refused(t, err, "volumes")
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", volume, err)
		}
	}
}

// TestAllRefusals tests that an author learns at once all that must change.
func TestAllRefusals(t *testing.T) {
	t.Parallel()
	vars := jobtest.Options(`"image":"UPPER","privileged":true,"add-caps":["ALL"],"publish":["80:80"],"pid":"host","colour":"red","user":"991",
		"volumes":["/dev/kfd:/dev/kfd","/var/run/docker.sock:/var/run/docker.sock","./x:/etc"],"tmpfs":["/proc"],"ulimits":["core=9","x=1"],
		"additional-groups":["docker:1","sudo"],"network":"host","memory":"much","environment":["OK=1",""],"init":"maybe"`)
	vars["BUILDKITE_REPO"], vars["BUILDKITE_ARTIFACT_PATHS"] = "https://example.com/x", "/etc/*;../x;ok"
	_, err := job.Read(attack(vars))
	no, ok := errors.AsType[*job.Refusal](err)
	if !ok {
		t.Fatal(err)
	}
	lines := strings.Join(no.Lines(), "\n") + "\n"
	for _, want := range []string{
		"image: ", "privileged: ", "add-caps: ", "publish: ", "pid: ", "colour: ", "user: ", `volumes: "/dev/kfd:/dev/kfd": `, `volumes: "/var/run/docker.sock:`,
		`volumes: "/etc"`, `tmpfs: "/proc"`, "ulimits: ", `additional-groups: "docker:1"`, "network: ", "memory: ", "environment: ", "init: ", "BUILDKITE_REPO: ", `artifact_paths: "/etc/*"`, `artifact_paths: "../x"`,
	} {
		if n := strings.Count("\n"+lines, "\n"+want); n != 1 && want != "ulimits: " || n == 0 {
			t.Errorf("%d lines begin with %s:\n%s", n, want, lines)
		}
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in %v", want, err)
		}
	}
	many := jobtest.Options(`"image":"a","volumes":["/x` + strings.Repeat(strings.Repeat("y", 100)+`:/x","/x`, 1000) + `"]`)
	if _, err := job.Read(attack(many)); err == nil || len(err.Error()) > 10_000 {
		t.Errorf("%.200v", err)
	}
}

// TestRefusalsHide tests that no further refusal quotes what the first one hides.
func TestRefusalsHide(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"A_TOKEN", "BUILDKITE_AGENT_ACCESS_TOKEN"} {
		vars := jobtest.Options(strings.ReplaceAll(`"image":"$X","expand-image-vars":true,"expand-volume-vars":true,"volumes":["$X:/x","./a:/$X"],"mounts":["$X"],"tmpfs":["$X","/x:$X"],"env-propagation-list":"X"`, "X", name))
		vars[name] = "sesame:/open=1 =x"
		if _, err := job.Read(attack(vars)); err == nil || strings.Contains(err.Error(), "sesame") || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestExpandBounds refuses what variables make too long, before it is.
func TestExpandBounds(t *testing.T) {
	t.Parallel()
	for name, options := range map[string]string{
		"image":   `"image":"` + strings.Repeat("$LONG", 20_000) + `","expand-image-vars":true`,
		"volumes": `"image":"a","volumes":["` + strings.Repeat("$LONG", 10_000) + `:/x","` + strings.Repeat(`./$LONG:/y","`, 500) + `"],"expand-volume-vars":true`,
		"tmpfs":   `"image":"a","tmpfs":["/x:` + strings.Repeat("$LONG", 20_000) + `"],"expand-volume-vars":true`,
	} {
		vars := jobtest.Options(options)
		vars["LONG"] = strings.Repeat("x", 100_000)
		_, err := job.Read(attack(vars))
		no, ok := errors.AsType[*job.Refusal](err)
		if !ok || no.Field != name || !strings.Contains(err.Error(), "with its variables") || len(err.Error()) > 10_000 {
			t.Errorf("%s: %.300v", name, err)
		}
	}
}
