// Package agent is a slot's buildkite-agent as a process: its installation, its start
// with the slot's user and token, its hooks, and the job that it runs.
package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/slot"
)

// tokenVar is the variable from which the agent reads its registration token, and its
// name in the token file.
const tokenVar = "BUILDKITE_AGENT_TOKEN"

// maxToken bounds a token file in bytes.
const maxToken = 64 << 10

// ParseToken finds the token in the text of a token file: a line BUILDKITE_AGENT_TOKEN=…,
// a line token=… of an agent's configuration, or a file with only the token.
func ParseToken(text []byte) (string, error) {
	var bare []string
	sc := bufio.NewScanner(bytes.NewReader(text))
	for sc.Scan() {
		line := strings.TrimSpace(sc.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, v, _ := strings.Cut(strings.TrimPrefix(line, "export "), "=")
		if name = strings.TrimSpace(name); name == tokenVar || name == "token" {
			if v = strings.Trim(strings.TrimSpace(v), `"'`); v == "" {
				continue // a template that is filled in later
			}
			return checkToken(v)
		}
		bare = append(bare, line)
	}
	if len(bare) == 1 && !strings.Contains(bare[0], "=") {
		return checkToken(bare[0])
	}
	return "", fmt.Errorf("no agent token found; write a line %s=… with the token from Buildkite (Agents, Agent Tokens)", tokenVar)
}

// ErrMalformed means that something else is in the place of a token, which no waiting changes.
var ErrMalformed = errors.New("the agent token is malformed (a token has 6 to 1024 letters, digits and '-', '_', '.'); copy it again from Buildkite (Agents, Agent Tokens)")

// checkToken refuses what cannot be a token, with ErrMalformed. The error does not repeat it.
func checkToken(t string) (string, error) {
	bad := strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\$`, r) })
	if len(t) < 6 || len(t) > 1024 || bad {
		return "", ErrMalformed
	}
	return t, nil
}

// ReadToken reads a token file.
func ReadToken(path string) (string, error) {
	text, err := limit.ReadFile(path, maxToken)
	if err != nil {
		return "", fmt.Errorf("read agent token: %w", err)
	}
	t, err := ParseToken(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return t, nil
}

// RenderToken returns the content of plan.TokenPath for a token.
func RenderToken(token string) string {
	return "# " + plan.Marker + "\n" + tokenVar + "=" + token + "\n"
}

// Exec replaces this process with the agent of slot k. It starts as root, in the agent's
// unit, and changes to the slot's user, so that the credential with the token stays with
// root. The user must be able to execute binary but not read it, which keeps
// /proc/<pid>/environ from the user's other processes.
func Exec(k int, binary string) error {
	token, err := ReadToken(filepath.Join(os.Getenv("CREDENTIALS_DIRECTORY"), "token"))
	if err != nil {
		return err
	}
	if err := undumpable(binary); err != nil {
		return err
	}
	name := plan.UserName(k)
	uid, gid, err := slot.LookupUser(name)
	if err != nil {
		return err
	}
	env := childEnv(os.Environ(), k, name, token)
	if err := os.Chdir(plan.WorkDir(k)); err != nil {
		return fmt.Errorf("enter work directory: %w", err)
	}
	syscall.Umask(0o022)
	if err := setUser(uid, gid); err != nil {
		return fmt.Errorf("become user %s: %w", name, err)
	}
	argv := []string{"buildkite-agent", "start", "--config", plan.AgentDir(k) + "/buildkite-agent.cfg"}
	if err := syscall.Exec(binary, argv, env); err != nil {
		return fmt.Errorf("execute %s: %w", binary, err)
	}
	return nil
}

// setUser gives this process the ids of a user, and no group but the given one.
func setUser(uid, gid int) error {
	return errors.Join(syscall.Setgroups([]int{gid}), syscall.Setgid(gid), syscall.Setuid(uid))
}

// undumpable refuses an agent that its user could read: the kernel would then let every
// process of that user read the agent's environment.
func undumpable(binary string) error {
	fi, err := os.Stat(binary)
	if err != nil {
		return fmt.Errorf("find agent: %w", err)
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || st.Uid != 0 || fi.Mode().Perm()&0o066 != 0 {
		return fmt.Errorf("%s must belong to root and have mode 0711, so that no job can read the token from the agent; run kbnode reconcile", binary)
	}
	return nil
}

// childEnv returns the agent's environment: the unit's without systemd's variables, plus
// the user's own and the token.
func childEnv(env []string, k int, userName, token string) []string {
	drop := []string{"CREDENTIALS_DIRECTORY", "INVOCATION_ID", "JOURNAL_STREAM", "NOTIFY_SOCKET", "MEMORY_PRESSURE_WATCH", "MEMORY_PRESSURE_WRITE", "SYSTEMD_EXEC_PID", "LISTEN_FDS", "LISTEN_PID", "HOME", "USER", "LOGNAME", "SHELL", tokenVar}
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(drop, name)
	})
	return append(env, "HOME="+plan.WorkDir(k), "USER="+userName, "LOGNAME="+userName, tokenVar+"="+token)
}
