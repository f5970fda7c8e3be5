package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
)

// foreign are the commands whose JSON others define: result.json is kernelbot's, and a pipeline Buildkite's.
var foreign = []string{"kbnode evaluate", "kbnode runner", "kbnode pipeline"}

var schemaOf = sync.OnceValues(func() (map[string]*jsonschema.Schema, error) {
	const dir = "../../packaging/schemas"
	files, err := filepath.Glob(dir + "/*.json")
	all := map[string]*jsonschema.Schema{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		if err != nil {
			return nil, err
		}
		c := jsonschema.NewCompiler()
		c.AssertFormat()
		name := filepath.Base(file)
		if err := c.AddResource(name, doc); err != nil {
			return nil, err
		}
		if all[strings.TrimSuffix(name, ".json")], err = c.Compile(name); err != nil {
			return nil, err
		}
	}
	return all, err
})

// checkJSON compares what a command line printed with --json with the schemas of the command.
func checkJSON(t testing.TB, args []string, out string) {
	t.Helper()
	cmd, rest, err := Commands().Find(args)
	if err != nil || !slices.Contains(rest, "--json") || isForeign(cmd) || strings.TrimSpace(out) == "" {
		return
	}
	flag := cmd.Flags().Lookup("json")
	if flag == nil {
		return
	}
	schemas, err := schemaOf()
	if err != nil {
		t.Fatal(err)
	}
	dec := json.NewDecoder(strings.NewReader(out))
	for dec.More() {
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return // its own test says what it prints then
		}
		doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(raw))
		if err != nil {
			t.Fatal(err)
		}
		var wrong []string
		for _, name := range term.Schemas(flag) {
			s := schemas[name]
			if s == nil {
				t.Fatalf("there is no packaging/schemas/%s.json", name)
			}
			err := s.Validate(doc)
			if err == nil {
				seenDocuments.Store(name, true)
				wrong = nil
				break
			}
			wrong = append(wrong, err.Error())
		}
		if wrong != nil {
			t.Errorf("%q prints what is not in its schemas:\n%s\n%.2000s", args, strings.Join(wrong, "\n"), raw)
		}
	}
}

// seenDocuments has the names of the documents that checkJSON saw.
var seenDocuments sync.Map

func isForeign(cmd *cobra.Command) bool {
	return slices.ContainsFunc(foreign, func(name string) bool {
		return cmd.CommandPath() == name || strings.HasPrefix(cmd.CommandPath(), name+" ")
	})
}

// TestJSONFlags holds that what is printed with --json has a schema.
func TestJSONFlags(t *testing.T) {
	t.Parallel()
	unused := map[string]bool{}
	for _, d := range Documents() {
		name, _, _ := d.Describe()
		unused[name] = true
	}
	known := len(unused)
	commands := 0
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		if flag := cmd.Flags().Lookup("json"); flag != nil && !isForeign(cmd) {
			commands++
			names := term.Schemas(flag)
			if len(names) == 0 {
				t.Errorf("%s: what --json prints has no schema; add the flag with term.JSONFlag", cmd.CommandPath())
			}
			for _, name := range names {
				delete(unused, name)
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(Commands())
	if len(unused) > 0 || commands < 15 || known < commands-5 {
		t.Errorf("%d commands; no command prints %v", commands, unused)
	}
}
