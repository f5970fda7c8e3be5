package job

import (
	"encoding/json"
	"errors"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// MaxEnvFile bounds the file in which the agent passes on what Buildkite sent, in bytes.
const MaxEnvFile = 8 << 20

// ReadEnvFile reads BUILDKITE_ENV_FILE, in its order: lines NAME="value", quoted as in Go. Agents of
// major version 4 also write bare names, which it skips.
func ReadEnvFile(file string) ([]Var, error) {
	const field = "BUILDKITE_ENV_FILE"
	if len(file) > MaxEnvFile {
		return nil, refuse(field, "it has more than %d bytes; put long values into files of the checkout", MaxEnvFile)
	}
	var env []Var
	for line := range strings.Lines(file) {
		name, quoted, ok := strings.Cut(strings.TrimRight(line, "\r\n"), "=")
		if !ok {
			continue
		}
		value, err := strconv.Unquote(quoted)
		if err != nil || quoted[0] != '"' {
			return nil, refuse(field, "%.60q is not NAME=\"value\"; run a version of buildkite-agent that kbnode supports", line)
		}
		env = append(env, Var{name, value})
	}
	return checkEnv(field, env)
}

// ReadEnvJSON reads BUILDKITE_ENV_JSON_FILE, the same as an object, which agents write since 3.82.
func ReadEnvJSON(file string) ([]Var, error) {
	const field = "BUILDKITE_ENV_JSON_FILE"
	if len(file) > MaxEnvFile {
		return nil, refuse(field, "it has more than %d bytes; put long values into files of the checkout", MaxEnvFile)
	}
	var env []Var
	var name string
	err := walk(file, 1, 2*maxVars+2, func(tok json.Token, isKey bool) error {
		switch value, isString := tok.(string); {
		case isKey:
			name = value
		case isString && name != "":
			env = append(env, Var{name, value})
			name = ""
		case tok != json.Delim('{') && tok != json.Delim('}'):
			return errors.New("it is not an object of text")
		}
		return nil
	})
	if err != nil || !strings.HasPrefix(strings.TrimSpace(file), "{") {
		return nil, refuse(field, "it is not what an agent writes; run a version of buildkite-agent that kbnode supports: %v", err)
	}
	return checkEnv(field, env)
}

func checkEnv(field string, env []Var) ([]Var, error) {
	if len(env) > maxVars {
		return nil, refuse(field, "it has %d variables; send at most %d", len(env), maxVars)
	}
	seen := map[string]bool{}
	for _, v := range env {
		switch {
		case v.Name == "" || len(v.Name) > maxName || !clean(v.Name):
			return nil, refuse(field, "%.80q is not the name of a variable; remove it from the build", v.Name)
		case seen[v.Name]:
			return nil, refuse(field, "%.80q is there twice; run a version of buildkite-agent that kbnode supports", v.Name)
		case !clean(v.Value):
			return nil, refuse(field, "%.80q has a NUL or is not UTF-8; remove such bytes, or encode the value", v.Name)
		}
		seen[v.Name] = true
	}
	return env, nil
}

// walk passes the tokens of a JSON text to see. encoding/json takes the last of two equal keys,
// replaces bytes that are not UTF-8, nests as deep as the text, and ignores what follows: walk does
// not, so that a second reader sees the same.
func walk(text string, maxDepth, maxTokens int, see func(tok json.Token, isKey bool) error) error {
	if !utf8.ValidString(text) {
		return errors.New("it is not UTF-8")
	}
	type level struct {
		keys   map[string]bool // nil in a list
		inside bool            // a key was read, and its value is next
	}
	var open []level
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	for n := 0; ; n++ {
		tok, err := dec.Token()
		if errors.Is(err, io.EOF) && n > 0 && len(open) == 0 {
			return nil
		}
		if err != nil {
			return errors.New("it is not JSON")
		}
		if n > 0 && len(open) == 0 {
			return errors.New("something follows it")
		}
		if n > maxTokens {
			return errors.New("it has too many values")
		}
		isKey := false
		if s, ok := tok.(string); ok {
			if strings.Contains(s, "\x00") {
				return errors.New("it contains a NUL")
			}
			if top := len(open) - 1; top >= 0 && open[top].keys != nil && !open[top].inside {
				if isKey = true; open[top].keys[s] {
					return errors.New("a key is there twice")
				}
				open[top].keys[s], open[top].inside = true, true
			}
		}
		if err := see(tok, isKey); err != nil {
			return err
		}
		switch tok {
		case json.Delim('{'):
			open = append(open, level{keys: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if len(open) > maxDepth {
			return errors.New("it is nested too deeply")
		}
		if top := len(open) - 1; top >= 0 && !isKey {
			open[top].inside = false // a value has ended, or one has begun that has no key before it
		}
	}
}
