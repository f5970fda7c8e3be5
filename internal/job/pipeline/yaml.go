package pipeline

import (
	"strings"
	"text/template"

	"gopkg.in/yaml.v3"
)

// layout is a pipeline with one command step:
// https://buildkite.com/docs/pipelines/configure/step-types/command-step.
// Strings have $$ where the command sees a dollar sign. Comments have no dollar sign: not every reader of
// YAML recognizes a comment.
//
// The option gpus is NVIDIA's: Docker rejects it without their runtime or CDI. A slot's GPU is passed in
// any case. Without init, the runner is process 1, which no submission can stop or inspect. Without tty, there
// is no terminal that a submission could open.
// The priority is a number: Buildkite refuses a variable there in the steps that it keeps for a pipeline
// (https://github.com/buildkite/terraform-provider-buildkite/issues/219).
// KBNODE_PROFILE asks a node for a profile, and has no effect elsewhere.
//
// The rules of retry (https://buildkite.com/docs/pipelines/configure/retry) list the failures that no
// submission causes. The command itself never ends with -1 or 255: kbnode runner exits with 0, 1 or 3, even
// for a submission that is killed. A job that exceeds its time limit has the reason cancel, and would only
// fail again. One that a stopped agent ended may have any status, and a rule without one means 1 to 255,
// not -1. With agent_refused nothing of the job ran, and another slot may be fit. With process_run_error
// the agent could not start kbnode; a job whose variables are too long for Linux gets it too, and fails
// once more.
const layout = `# kbnode pipeline {{.Kind}}
{{range lines .About}}# {{.}}
{{end}}steps:
{{- with .Options}}
  - label: {{quote .Label}}
    command: {{with $.Script}}|{{range lines .}}
      {{.}}{{end}}{{else}}exec kbnode runner{{end}}
    agents:
{{- range $tag, $value := .Agents}}
      {{scalar $tag}}: {{quote $value}}
{{- end}}
{{- with .Priority}}
    priority: {{.}}
{{- end}}
{{- if ne $.Kind "artifact-test"}}
    plugins:
      - docker#v5.11.0:
          image: {{quote .Image}}
{{- if not .AMD}}
          gpus: all
{{- end}}
{{- if eq $.Kind "eval"}}
          init: false
          tty: false
{{- end}}
{{- with .Profile}}
          environment:
            - KBNODE_PROFILE={{.}}
{{- end}}
          propagate-environment: true
{{- end}}
{{- if ne $.Kind "docker-test"}}
    artifact_paths:
      - result.json
{{- end}}
{{- if eq $.Kind "eval"}}
      - node.json
      - profile_data/**
{{- end}}
    timeout_in_minutes: {{.Timeout}}
{{- end}}
    # Retry only what no submission can cause: the agent was lost (-1) or stopped,
    # refused the job before it began, or could not start kbnode; or the node is at fault (255).
    # The command ends with 0, 1 or 3, whatever was submitted.
    retry:
      automatic:
        - exit_status: [-1]
          signal_reason: none
          limit: 2
        - exit_status: [-1]
          signal_reason: agent_stop
          limit: 2
        - signal_reason: agent_stop
          limit: 2
        - exit_status: [-1]
          signal_reason: agent_refused
          limit: 1
        - exit_status: [255]
          signal_reason: none
          limit: 1
        - exit_status: [-1]
          signal_reason: process_run_error
          limit: 1
`

func newLayout() *template.Template {
	return template.Must(template.New("pipeline").Funcs(template.FuncMap{
		"lines": func(text string) []string { return strings.Split(strings.TrimSuffix(text, "\n"), "\n") },
		// Versions of YAML differ in what they read as a number.
		"quote": func(text string) string { return `"` + strings.ReplaceAll(text, `"`, `\"`) + `"` },
		"scalar": func(text string) string {
			plain, _ := yaml.Marshal(text) // in quotes, if it must be
			return strings.TrimSuffix(string(plain), "\n")
		},
	}).Parse(layout))
}
