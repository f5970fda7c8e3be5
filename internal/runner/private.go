package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// environLimit bounds the initial environment; execve accepts 6 MiB at most.
const environLimit = 8 << 20

// isPrivate reports whether a variable must not reach the submission: the payload,
// which holds the secret seed and the tests, and credentials for Buildkite's APIs and
// artifact stores.
func isPrivate(name string) bool {
	switch name {
	case "BUILDKITE_AGENT_ACCESS_TOKEN", "BUILDKITE_AGENT_TOKEN", "BUILDKITE_API_TOKEN",
		"BUILDKITE_AGENT_JOB_API_SOCKET", "BUILDKITE_AGENT_JOB_API_TOKEN",
		"BUILDKITE_S3_ACCESS_KEY_ID", "BUILDKITE_S3_SECRET_ACCESS_KEY", "BUILDKITE_S3_SESSION_TOKEN",
		"BUILDKITE_ARTIFACTORY_USER", "BUILDKITE_ARTIFACTORY_PASSWORD":
		return true
	}
	return payload.IsVar(name)
}

// shed splits an environment into the variables that programs may see and the others. It removes these from
// /proc/PID/environ, which shows what the process was started with.
func shed(env []string) (public, private []string, err error) {
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if isPrivate(name) {
			private = append(private, kv)
		} else {
			public = append(public, kv)
		}
	}
	if len(private) > 0 {
		err = overwriteInitial()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("hide the payload from the submission: %w; give it with --payload instead", err)
	}
	return public, private, nil
}

// overwriteInitial blanks the private variables of the environment that the process was
// started with. Go uses a copy, made at startup.
func overwriteInitial() error {
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
	f, err := os.OpenFile("/proc/self/mem", os.O_WRONLY, 0)
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
	if size = end - start; start <= 0 || size < 0 || size > environLimit {
		return 0, 0, errors.Join(err, errors.New("read /proc/self/stat: the environment's place is missing"))
	}
	return start, size, err
}
