package job

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"slices"
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
		line = strings.TrimRight(line, "\r\n")
		name, quoted, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		value, err := strconv.Unquote(quoted)
		if err != nil || quoted[0] != '"' {
			return nil, refuse(field, "%.60q is not NAME=\"value\"; write it so, or run a version of buildkite-agent that kbnode supports", line)
		}
		env = append(env, Var{name, value})
	}
	return checkEnv(field, env)
}

// ReadEnvJSON reads BUILDKITE_ENV_JSON_FILE, the same as an object, which agents write since 3.82. It
// sorts the names.
func ReadEnvJSON(file string) ([]Var, error) {
	const field = "BUILDKITE_ENV_JSON_FILE"
	if len(file) > MaxEnvFile {
		return nil, refuse(field, "it has more than %d bytes; put long values into files of the checkout", MaxEnvFile)
	}
	var object map[string]string
	if ambiguous(file, 1, 2*maxVars+2) != "" || json.Unmarshal([]byte(file), &object) != nil {
		return nil, refuse(field, "it is not what an agent writes; run a version of buildkite-agent that kbnode supports")
	}
	var env []Var
	for _, name := range slices.Sorted(maps.Keys(object)) {
		env = append(env, Var{name, object[name]})
	}
	return checkEnv(field, env)
}

func checkEnv(field string, env []Var) ([]Var, error) {
	if len(env) > maxVars {
		return nil, refuse(field, "it has %d variables; send at most %d", len(env), maxVars)
	}
	names := map[string]bool{}
	for _, v := range env {
		switch {
		case v.Name == "" || len(v.Name) > maxName || !clean(v.Name):
			return nil, refuse(field, "%.80q is not the name of a variable; remove it from the build", v.Name)
		case names[v.Name]:
			return nil, refuse(field, "%.80q is there twice; run a version of buildkite-agent that kbnode supports", v.Name)
		case !clean(v.Value):
			return nil, refuse(field, "%.80q has a NUL or is not UTF-8; remove such bytes, or encode the value", v.Name)
		}
		names[v.Name] = true
	}
	return env, nil
}

// ambiguous returns why two readers may read a JSON text in two ways, or "": encoding/json takes the
// last of two equal keys, replaces bytes that are not UTF-8, nests as deep as the text, and ignores
// what follows.
func ambiguous(text string, maxDepth, maxTokens int) (why string) {
	if !utf8.ValidString(text) {
		return "is not UTF-8"
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
			return ""
		}
		switch s, isString := tok.(string); {
		case err != nil || n > 0 && len(open) == 0:
			return "is not one JSON text"
		case n > maxTokens || len(open) > maxDepth:
			return "has too many values, or is nested too deeply"
		case strings.Contains(s, "\x00"):
			return "contains a NUL"
		case isString && len(open) > 0 && open[len(open)-1].keys != nil && !open[len(open)-1].inside:
			top := &open[len(open)-1]
			if top.keys[s] {
				return "has a key twice"
			}
			top.keys[s], top.inside = true, true
			continue
		}
		switch tok {
		case json.Delim('{'):
			open = append(open, level{keys: map[string]bool{}})
		case json.Delim('['):
			open = append(open, level{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
		if len(open) > 0 && tok != json.Delim('{') && tok != json.Delim('[') {
			open[len(open)-1].inside = false // the value has ended
		}
	}
}
