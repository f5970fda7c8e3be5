package runner

import (
	"bytes"
	"cmp"
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
	"github.com/gpu-mode/kbnode/internal/result"
)

// privateFD is the variable with the number of the file that holds the private part of
// the environment. A process that cannot hide its environment sets it for its
// successor.
const privateFD = "KBNODE_RUNNER_PRIVATE_FD"

// privateLimit bounds that file; execve accepts 6 MiB of environment at most.
const privateLimit = 8 << 20

// isPrivate reports whether a variable must not reach the submission: the payload,
// which holds the secret seed and the tests, and credentials for Buildkite's APIs and
// artifact stores.
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

// splitEnv splits an environment into the variables that programs may see and the
// others.
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

// shed splits the environment and removes the private part from /proc/PID/environ,
// which shows what the process was started with. It overwrites that part through
// memory, which is /proc/self/mem. If the system does not allow that, shed executes the
// program again without it, and returns there.
func shed(env []string, memory string) (public, private []string, err error) {
	if fd := getenv(env, privateFD); fd != "" {
		public, _ = splitEnv(env)
		private, err = readPrivate(fd)
		return public, private, err
	}
	public, private = splitEnv(env)
	if len(private) == 0 || overwriteInitial(memory) == nil {
		return public, private, nil
	}
	return public, private, replaceProcess(public, private)
}

// overwriteInitial blanks the private variables of the environment that the process was
// started with. Go uses a copy, made at startup.
func overwriteInitial(memory string) error {
	start, size, err := initialEnv()
	if err != nil {
		return err
	}
	env, after := make([]byte, size), make([]byte, size)
	if err := readAll("/proc/self/environ", env); err != nil {
		return err
	}
	for kv := range bytes.SplitSeq(env, []byte{0}) {
		if name, _, _ := bytes.Cut(kv, []byte("=")); isPrivate(string(name)) {
			clear(kv)
		}
	}
	f, err := os.OpenFile(memory, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(env, start)
	if err = errors.Join(err, f.Close(), readAll("/proc/self/environ", after)); err != nil {
		return err
	}
	if !bytes.Equal(env, after) {
		return errors.New("overwrite environment: it did not change")
	}
	return nil
}

func readAll(path string, buf []byte) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	_, err = io.ReadFull(f, buf)
	return errors.Join(err, f.Close())
}

// initialEnv returns where in this process's memory the kernel put its environment:
// env_start and env_end, fields 50 and 51 of /proc/PID/stat, proc_pid_stat(5).
func initialEnv() (start, size int64, err error) {
	const first, envStart = 3, 50 // the first field after the name, which may hold anything
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0, 0, err
	}
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < envStart-first+2 {
		return 0, 0, errors.New("read /proc/self/stat: fields are missing")
	}
	start, err = strconv.ParseInt(string(fields[envStart-first]), 10, 64)
	if err != nil {
		return 0, 0, err
	}
	end, err := strconv.ParseInt(string(fields[envStart-first+1]), 10, 64)
	if size = end - start; start <= 0 || size < 0 || size > privateLimit {
		return 0, 0, errors.Join(err, errors.New("read /proc/self/stat: the environment's place is not told"))
	}
	return start, size, err
}

// replaceProcess writes the private part to an anonymous file and executes this program
// again without it. It returns only if that fails.
func replaceProcess(public, private []string) error {
	fd, err := unix.MemfdCreate("kbnode-runner", 0)
	if err == nil {
		f := os.NewFile(uintptr(fd), "memfd")
		_, err = io.WriteString(f, strings.Join(private, "\x00"))
	}
	if err == nil {
		env := append(slices.Clone(public), privateFD+"="+strconv.Itoa(fd))
		err = syscall.Exec("/proc/self/exe", os.Args, env) //nolint:gosec // this very program, with the arguments that it was given
	}
	return fmt.Errorf("hide the payload from the submission: %w", err)
}

// newAnnotation returns what a job's environment says about its annotation.
func newAnnotation(public, private []string) result.Annotation {
	return result.Annotation{
		// The agent's own default; not every container gets the variable.
		Endpoint: cmp.Or(getenv(public, "BUILDKITE_AGENT_ENDPOINT"), "https://agent.buildkite.com/v3"), JobID: getenv(public, "BUILDKITE_JOB_ID"),
		// A copy, so that the token does not keep the payload beside it in memory.
		Token: strings.Clone(getenv(private, "BUILDKITE_AGENT_ACCESS_TOKEN")),
	}
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
