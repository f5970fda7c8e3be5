package guard

import (
	"fmt"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
)

// TestAnswers tells a step's mistakes from the node's faults. The answers are those of Docker 20.10.24 and 26.1.5 with runc
// 1.1.5, and of later versions by their source. None of the node's paths is in the log.
func TestAnswers(t *testing.T) {
	t.Parallel()
	const (
		oci   = "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: "
		mount = oci + "error during container init: error mounting %q to rootfs at %q: %s: unknown"
		layer = "/var/lib/docker/overlay2/02ed25cf5ee21de9a1bd8275d44f6aca20070efd2ed193d114420463bcc8f1c3/merged"
		start = "/start"
	)
	at := func(source, target, why string) string { return fmt.Sprintf(mount, source, target, why) }
	for name, row := range map[string]struct {
		at      string // "" for the container's creation
		status  int    // of the answer
		answer  string
		options string // of the plugin
		says    string // what the log says; "" if it is the node's fault
	}{
		"a user":                  {start, 500, "unable to find user nobody: no matching entries in passwd file", `"user":"nobody"`, `user: the image's /etc/passwd has no user "nobody"; write a number`},
		"an image's user":         {start, 500, "unable to find user app: no matching entries in passwd file", ``, `the image's /etc/passwd has no user "app"`},
		"a user's group":          {start, 500, "unable to find group nogrp: no matching entries in group file", `"user":"1000:nogrp"`, `user: the image's /etc/group has no group "nogrp"`},
		"another group":           {start, 500, "Unable to find group nogrp: no matching entries in group file", `"additional-groups":["nogrp"]`, `additional-groups: the image's /etc/group has no group "nogrp"`},
		"an ID out of range":      {start, 500, "uids and gids must be in range 0-2147483647", `"user":"app"`, "user: "},
		"a file as workdir":       {"", 500, "Cannot mkdir: /bin/sh is not a directory", `"workdir":"/bin/sh","mount-checkout":false`, `workdir: no command can start in "/bin/sh" (not a directory)`},
		"below a file":            {"", 500, "lstat " + layer + "/bin/busybox/x: not a directory", `"workdir":"/bin/sh/x","mount-checkout":false`, `workdir: no command can start in "/bin/sh/x" (not a directory)`},
		"a loop as workdir":       {"", 500, "evalSymlinksInScope: too many links in " + layer + "/loop", `"workdir":"/loop","mount-checkout":false`, "workdir: "},
		"a long workdir":          {"", 500, "lstat " + layer + "/xxx: file name too long", `"workdir":"/xxx","mount-checkout":false`, "workdir: "},
		"a closed workdir":        {start, 500, oci + `error during container init: chdir to cwd ("/root") set in config.json failed: permission denied: unknown`, `"workdir":"/root","mount-checkout":false`, `workdir: no command can start in "/root" (permission denied)`},
		"a file of the checkout":  {start, 400, oci + "error during container init: mkdir /workdir/README.md: not a directory: unknown: Are you trying to mount a directory onto a file (or vice-versa)?", `"workdir":"/workdir/README.md","mount-checkout":false,"volumes":[".:/workdir"]`, `workdir: no command can start in "/workdir/README.md" (not a directory)`},
		"below a read-only mount": {start, 500, oci + "error during container init: mkdir /src/new: read-only file system: unknown", `"workdir":"/src/new","mount-checkout":false`, "workdir: "},
		"a link to nothing":       {start, 500, oci + "error during container init: mkdir /src/x: file exists: unknown", `"workdir":"/src/x","mount-checkout":false`, "workdir: "},
		"over a library":          {start, 500, at("/usr/lib/libcuda.so.1", "/opt/x/libcuda.so.1", "mkdir "+layer+"/opt/x: read-only file system"), `"volumes":[".:/opt:ro"]`, `at "/opt/x/libcuda.so.1"`},
		"a library below a mount": {start, 500, at("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1", "no such file or directory"), `"volumes":[".:/usr"]`, ""},
		"a full layer":            {start, 500, oci + "error during container init: mkdir /src/x: no space left on device: unknown", `"workdir":"/src/x","mount-checkout":false`, ""},
		"a workdir elsewhere":     {start, 500, oci + "error during container init: current working directory is outside of container mount namespace root -- possible container breakout detected: unknown", ``, "workdir: "},
		"a tmpfs":                 {start, 500, at("tmpfs", "/t", "mount tmpfs:/t (via /proc/self/fd/6), flags: 0xe, data: nr_inodes=5: invalid argument"), `"tmpfs":["/t:nr_inodes=5"]`, `nothing can be mounted at "/t" of this image (invalid argument)`},
		"a tmpfs on a file":       {start, 400, at("tmpfs", "/bin/sh", "mount tmpfs:/bin/sh (via /proc/self/fd/6), flags: 0xe: not a directory") + ": Are you trying to mount a directory onto a file (or vice-versa)? Check if the specified host path exists and is the expected type", `"tmpfs":["/bin/sh"]`, `at "/bin/sh" of this image (not a directory)`},
		"an option of tmpfs":      {start, 500, `invalid tmpfs option ["foo" "1"]`, ``, "tmpfs: "},
		"a directory on a file": {start, 400, at("/var/lib/buildkite-agent/builds/gpu0/kbnode-X/checkout/data", "/bin/sh/x", "open o_path procfd: open "+layer+"/bin/busybox/x: not a directory") + ": Are you trying to mount a directory onto a file (or vice-versa)?",
			`"volumes":[".:/bin/sh/x"]`, `at "/bin/sh/x" of this image (not a directory)`},
		"a loop":             {start, 500, at("/x", "/loop/x", "SecureJoin "+layer+"/loop/x: too many levels of symbolic links"), `"volumes":[".:/loop/x"]`, `at "/loop/x"`},
		"below a mount":      {start, 500, at("/x", "/src/b", "mkdir "+layer+"/src/b: read-only file system"), `"volumes":[".:/src:ro",".:/src/b"]`, `at "/src/b"`},
		"as runc 1.0 has it": {start, 400, `OCI runtime create failed: container_linux.go:380: starting container process caused: process_linux.go:545: container init caused: rootfs_linux.go:76: mounting \"/x\" to rootfs at \"/t\" caused: mount through procfd: not a directory: unknown`, `"tmpfs":["/t"]`, `at "/t"`},
		"a limit too high":   {start, 500, oci + "error during container init: error setting rlimits for ready process: error setting rlimit type 7: operation not permitted: unknown", `"ulimits":["nofile=1048576"]`, "ulimits: "},
		"few files":          {start, 500, oci + "error loading seccomp filter into kernel: error creating scratch pipe: pipe2: too many open files: unknown", `"ulimits":["nofile=4"]`, "ulimits: "},
		"little data":        {start, 500, oci + "error adding seccomp filter rule for syscall fsync: cannot allocate memory: unknown", `"ulimits":["stack=1000"]`, "ulimits: "},
		"no time":            {start, 500, "cannot start a stopped process: unknown", `"ulimits":["cpu=1"]`, "ulimits: "},
		"little memory":      {start, 500, oci + "container init was OOM-killed (memory limit too low?): unknown", `"memory":"6m"`, "memory: "},
		"a capability":       {"", 400, `invalid CapDrop: unknown capability: "CAP_FOO"`, `"drop-caps":["FOO"]`, "unknown capability"},
		"no command":         {"", 400, "no command specified", ``, "no command specified"},
		"no program":         {start, 400, oci + `exec: "nosuch": executable file not found in $PATH: unknown`, `"entrypoint":"nosuch"`, `command: "nosuch" cannot run in this image (executable file not found in $PATH)`},
		"no file":            {start, 400, oci + `exec: "./x": stat ./x: no such file or directory: unknown`, `"entrypoint":"./x"`, `command: "./x" cannot run in this image (no such file or directory)`},
		"a directory to run": {start, 400, oci + `exec: "/bin": is a directory: unknown`, `"entrypoint":"/bin"`, "(is a directory)"},
		"no permission":      {start, 400, oci + `exec: "/nox": permission denied: unknown`, `"entrypoint":"/nox"`, "(permission denied)"},
		"another format":     {start, 500, oci + `exec /text: exec format error: unknown`, `"entrypoint":"/text"`, "(exec format error)"},

		"an image's /etc/hosts":  {start, 400, at("/var/lib/docker/containers/x/hosts", "/etc/hosts", "mount /var/lib/docker/containers/x/hosts:/etc/hosts (via /proc/self/fd/6), flags: 0x5000: not a directory"), ``, `image: Docker cannot mount its "/etc/hosts" (not a directory)`},
		"a tmpfs without room":   {start, 500, at("/usr/lib/kbnode", "/opt/bin/x", "mkdir "+layer+"/opt/bin: no space left on device"), `"tmpfs":["/opt:size=4k,nr_inodes=1"]`, `tmpfs: there is no room to mount "/opt/bin/x" in one`},
		"no room beside a tmpfs": {start, 500, at("/usr/lib/kbnode", "/opt/bin/x", "mkdir "+layer+"/opt/bin: no space left on device"), `"tmpfs":["/op"]`, ""},

		"no driver":               {start, 400, `could not select device driver "nvidia" with capabilities: [[gpu]]`, ``, ""},
		"no device":               {start, 500, `error gathering device information while adding custom device "/dev/nvidia0": no such file or directory`, ``, ""},
		"no CDI":                  {start, 500, "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-1", ``, ""},
		"a library":               {start, 400, at("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1", "no such file or directory"), ``, ""},
		"a full disk":             {"", 500, "mkdir " + layer + ": no space left on device", ``, ""},
		"a lost layer":            {"", 500, "stat " + layer + ": no such file or directory", ``, ""},
		"a broken disk":           {start, 500, at("/x", "/workdir", "mkdir "+layer+"/workdir: input/output error"), ``, ""},
		"no program of kbnode's":  {"", 400, `invalid mount config for type "bind": bind source path does not exist: /usr/lib/kbnode`, ``, ""},
		"no init":                 {start, 400, oci + `exec: "/sbin/docker-init": stat /sbin/docker-init: no such file or directory: unknown`, ``, ""},
		"a limit of the slot's":   {start, 500, oci + "error setting rlimit type 8: operation not permitted: unknown", ``, ""},
		"the node has no memory":  {start, 500, oci + "error adding seccomp filter rule: cannot allocate memory: unknown", `"ulimits":["nofile=1000"]`, ""},
		"a name that is taken":    {"", 409, "Conflict. The container name is already in use", ``, ""},
		"an endpoint that stayed": {start, 403, "endpoint with name kbnode-gpu0 already exists in network", ``, ""},
		"something else":          {start, 500, oci + "waiting for init preliminary setup: read init-p: connection reset by peer: unknown", ``, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			plugin := strings.Replace(runnerPlugin, `"image":"img"`, strings.TrimSuffix(`"image":"img",`+row.options, ","), 1)
			r := newJobRig(t, map[string]string{"BUILDKITE_PLUGINS": plugin, "BUILDKITE_REPO": ""})
			r.engine.says = row.answer
			r.engine.fault = func(req *http.Request) int {
				suffix := row.at
				if suffix == "" {
					suffix = "/containers/create"
				}
				if req.Method == http.MethodPost && strings.HasSuffix(req.URL.Path, suffix) && !strings.HasSuffix(req.URL.Query().Get("name"), imageSuffix) {
					return row.status
				}
				return 0
			}
			status := job.ExitRefused
			if row.says == "" {
				status = bootstrap.ExitNode
			}
			r.expect(t, r.wait(t, r.start(t.Context())), status, row.says)
			for _, path := range []string{"/var/lib", "/usr/lib", "/proc/self"} {
				if strings.Contains(r.log.String(), path) {
					t.Errorf("the log has %s: %s", path, r.log.String())
				}
			}
		})
	}
}

// TestForeign refuses an image that no processor here can run.
func TestForeign(t *testing.T) {
	t.Parallel()
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	for arch, fine := range map[string]bool{"": true, runtime.GOARCH: true, "386": true, "unknown": true, other: false, "s390x": false} {
		if why := foreign("a", arch); (why == "") != fine {
			t.Errorf("%s: %q", arch, why)
		}
	}
}

// TestUnrunnable tells a command that runc could not run from one that ended with 255 itself.
func TestUnrunnable(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		log    string
		init   string
		status int
	}{
		"no interpreter":       {"exec /job.sh: no such file or directory\n", "false", 126},
		"another architecture": {"exec /bin/sh: exec format error\r\n", "false", 126},
		"with Docker's init":   {"exec /bin/sh: exec format error\n", "true", bootstrap.ExitNode},
		"its own":              {"", "false", bootstrap.ExitNode},
		"after a line":         {"hello\nexec /bin/sh: exec format error\n", "false", bootstrap.ExitNode},
		"much":                 {strings.Repeat("x", 1<<20), "false", bootstrap.ExitNode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newJobRig(t, map[string]string{"BUILDKITE_REPO": "", "BUILDKITE_PLUGINS": strings.Replace(runnerPlugin, `"tty":false`, `"tty":false,"init":`+row.init, 1)})
			r.engine.status = 255
			r.engine.logs = func(write func(string)) { write(row.log) }
			r.expect(t, r.finish(t, r.start(t.Context())), row.status, map[bool]string{true: "cannot run in this image"}[row.status == 126])
		})
	}
}
