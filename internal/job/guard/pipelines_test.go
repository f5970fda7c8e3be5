package guard

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/container"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestPipelines tests what becomes of the pipelines that must go on working, from YAML to the container.
func TestPipelines(t *testing.T) {
	t.Parallel()
	const file = "testdata/pipelines.txtar"
	archive, err := txtar.ParseFile(file)
	must.Do(t, err)
	policy := testPolicy()
	policy.NodeImage, policy.MemoryBytes = "kernelbot:node", 256<<30
	dir := filepath.Join(t.TempDir(), "checkout")
	must.Do(t, os.MkdirAll(filepath.Join(dir, "test-output"), 0o700))
	bare, err := made(policy, testFacts(), func(s *job.Spec) { s.Image = "" })
	must.Do(t, err)

	written := txtar.Archive{Comment: archive.Comment}
	var vars []job.Var
	for _, f := range archive.Files {
		name, kind, _ := strings.Cut(f.Name, ".")
		switch kind {
		case "env":
			vars, err = job.ReadEnvFile(string(f.Data))
			must.Do(t, err)
		case "yml":
			jobs := agentJobs(t, string(f.Data), vars)
			written.Files = append(written.Files, f)
			for i, in := range jobs {
				spec, err := job.Read(in)
				if err != nil {
					t.Fatalf("%s: step %d: %v", name, i+1, err)
				}
				got, err := fromSpec(policy, testFacts(), spec, dir)
				if err != nil {
					t.Fatalf("%s: step %d: %v", name, i+1, err)
				}
				checkTargets(t, name, got.HostConfig)
				text := strings.ReplaceAll(differences(t, bare, got), filepath.Dir(dir), "")
				written.Files = append(written.Files, txtar.File{Name: fmt.Sprintf("%s.container %d", name, i+1), Data: []byte(text)})
			}
			continue
		default:
			continue // written again
		}
		written.Files = append(written.Files, f)
	}
	must.Golden(t, file, *update, string(txtar.Format(&written)))
}

// agentJobs returns what an agent says of each step of a pipeline, of a build with these variables.
func agentJobs(t *testing.T, yaml string, vars []job.Var) (jobs []job.Input) {
	t.Helper()
	filled, err := job.FillPipeline(yaml, vars)
	must.Do(t, err)
	var pipeline struct {
		Steps []struct {
			Command   string
			Env       map[string]string
			Plugins   json.RawMessage
			Artifacts []string `json:"artifact_paths"`
		}
	}
	must.Do(t, json.Unmarshal(filled, &pipeline))
	for _, step := range pipeline.Steps {
		sent := map[string]string{}
		for _, v := range vars {
			sent[v.Name] = v.Value
		}
		maps.Copy(sent, step.Env)
		maps.Copy(sent, map[string]string{
			"BUILDKITE": "true", "CI": "true", "BUILDKITE_JOB_ID": "0190", "BUILDKITE_BUILD_ID": "0190-build",
			"BUILDKITE_REPO": "https://github.com/gpu-mode/kernelbot", "BUILDKITE_COMMIT": "HEAD", "BUILDKITE_BRANCH": "main",
			"BUILDKITE_COMMAND": step.Command, "BUILDKITE_PLUGINS": string(step.Plugins),
			"BUILDKITE_ARTIFACT_PATHS": strings.Join(step.Artifacts, ";"),
		})
		in := job.Input{Env: maps.Clone(sent), Repositories: []string{`^https://github\.com/gpu-mode/kernelbot$`}}
		for _, name := range slices.Sorted(maps.Keys(sent)) {
			in.Sent = append(in.Sent, job.Var{Name: name, Value: sent[name]})
		}
		in.Env["BUILDKITE_AGENT_ACCESS_TOKEN"], in.Env["NVIDIA_VISIBLE_DEVICES"] = "secret", "all"
		jobs = append(jobs, in)
	}
	return jobs
}

// checkTargets fails where the engine would say "Duplicate mount point".
func checkTargets(t *testing.T, name string, h *container.HostConfig) {
	t.Helper()
	targets := slices.Collect(maps.Keys(h.Tmpfs))
	for _, m := range h.Mounts {
		if slices.Contains(targets, m.Target) {
			t.Errorf("%s: %s is there twice", name, m.Target)
		}
		targets = append(targets, m.Target)
	}
}

// differences has a line for each field of a request that another one does not have so, and only the new
// elements of a list. It leaves out the variables of every build.
func differences(t *testing.T, from, to *container.CreateRequest) string {
	t.Helper()
	old, fields := requestFields(t, from), requestFields(t, to)
	var b bytes.Buffer
	line := json.NewEncoder(&b)
	line.SetEscapeHTML(false)
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		value := fields[name]
		if fmt.Sprint(value) == fmt.Sprint(old[name]) {
			continue
		}
		if list, ok := value.([]any); ok {
			known, _ := old[name].([]any)
			list = slices.DeleteFunc(list, func(e any) bool {
				text, _ := e.(string)
				return strings.HasPrefix(text, "BUILDKITE") || text == "CI=true" ||
					slices.ContainsFunc(known, func(k any) bool { return fmt.Sprint(k) == fmt.Sprint(e) })
			})
			if len(list) == 0 {
				continue
			}
			value = list
		}
		b.WriteString(name + " ")
		must.Do(t, line.Encode(value))
	}
	return b.String()
}

// requestFields returns the fields of a request by their JSON names.
func requestFields(t *testing.T, r *container.CreateRequest) map[string]any {
	t.Helper()
	fields := map[string]any{}
	for _, part := range []any{r.Config, r.HostConfig} {
		text, err := json.Marshal(part)
		must.Do(t, err)
		must.Do(t, json.Unmarshal(text, &fields))
	}
	return fields
}
