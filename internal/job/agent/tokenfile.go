// Package agent is a slot's buildkite-agent as a process: its installation, its start
// with the slot's user and token, its hooks, and the job that it runs.
package agent

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/limit"
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
		name = strings.TrimSpace(name)
		if name == tokenVar || name == "token" {
			v = strings.Trim(strings.TrimSpace(v), `"'`)
			if v == "" {
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

// apiToken is an ErrMalformed.
type apiToken struct{}

func (apiToken) Error() string {
	return "this is an API token; use an agent token (Agents, the cluster, Agent Tokens)"
}

func (apiToken) Is(target error) bool { return target == ErrMalformed }

// checkToken refuses what cannot be a token, with ErrMalformed. The error does not repeat it.
func checkToken(t string) (string, error) {
	bad := strings.ContainsFunc(t, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`"'\$`, r) })
	if len(t) < 6 || len(t) > 1024 || bad {
		return "", ErrMalformed
	}
	if strings.HasPrefix(t, "bkua_") {
		return "", apiToken{}
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
