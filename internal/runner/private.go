package runner

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// privateFD names the variable that carries, over the re-execution, the number
// of the file that holds the private part of the environment.
const privateFD = "KBNODE_RUNNER_PRIVATE_FD"

// privateLimit bounds that file; execve accepts 6 MiB of environment at most.
const privateLimit = 8 << 20

// isPrivate says whether a variable must not reach the submission: the payload,
// which holds the secret seed and the tests, and what opens Buildkite's APIs.
func isPrivate(name string) bool {
	switch name {
	case "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN", "BUILDKITE_API_TOKEN",
		"BUILDKITE_AGENT_JOB_API_SOCKET", "BUILDKITE_AGENT_JOB_API_TOKEN",
		"BUILDKITE_S3_ACCESS_KEY_ID", "BUILDKITE_S3_SECRET_ACCESS_KEY", "BUILDKITE_S3_SESSION_TOKEN",
		"BUILDKITE_ARTIFACTORY_USER", "BUILDKITE_ARTIFACTORY_PASSWORD",
		privateFD:
		return true
	}
	return payload.IsVar(name)
}

// splitEnv parts an environment into what programs may see and what not.
func splitEnv(env []string) (public, private []string) {
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if isPrivate(name) {
			private = append(private, kv)
		} else {
			public = append(public, kv)
		}
	}
	return public, private
}

// shed splits the environment and sees to it that the private part is not in
// /proc/PID/environ either, which holds what the process was started with: it
// puts that part into an anonymous file and executes itself again without it.
// So shed returns in the second process, or where nothing is private.
func shed(env []string) (public, private []string, err error) {
	if fd := getenv(env, privateFD); fd != "" {
		public, _ = splitEnv(env)
		private, err = readPrivate(fd)
		return public, private, err
	}
	public, private = splitEnv(env)
	if len(private) == 0 {
		return public, private, nil
	}
	fd, err := unix.MemfdCreate("kbnode-runner", 0)
	if err == nil {
		f := os.NewFile(uintptr(fd), "memfd")
		_, err = io.WriteString(f, strings.Join(private, "\x00"))
	}
	if err == nil {
		env := append(slices.Clone(public), privateFD+"="+strconv.Itoa(fd))
		err = syscall.Exec("/proc/self/exe", os.Args, env) //nolint:gosec // this very program, with the arguments that it was given
	}
	return public, private, fmt.Errorf("hide the payload from the submission: %w", err)
}

func readPrivate(number string) ([]string, error) {
	fd, err := strconv.Atoi(number)
	if err != nil || fd <= 2 {
		return nil, fmt.Errorf("read private environment: %s=%s is not a file's number; unset it", privateFD, number)
	}
	f := os.NewFile(uintptr(fd), "private environment")
	if f == nil {
		return nil, fmt.Errorf("read private environment: no file %d; unset %s", fd, privateFD)
	}
	_, err = f.Seek(0, io.SeekStart)
	var text []byte
	if err == nil {
		text, err = io.ReadAll(io.LimitReader(f, privateLimit))
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("read private environment: %w; unset %s", err, privateFD)
	}
	return strings.Split(string(text), "\x00"), nil
}

// childEnv completes the environment of programs as the Python engine's own
// start did: in the C locale, CPython sets LC_CTYPE and its children inherit it.
func childEnv(public []string) []string {
	switch locale := getenv(public, "LC_CTYPE"); {
	case getenv(public, "LC_ALL") != "" || getenv(public, "PYTHONCOERCECLOCALE") == "0":
		return public
	case locale != "" && locale != "C" && locale != "POSIX":
		return public
	case locale == "":
		if lang := getenv(public, "LANG"); lang != "" && lang != "C" && lang != "POSIX" {
			return public
		}
	}
	return setenv(public, "LC_CTYPE", "C.UTF-8")
}
