package main

import (
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
)

// The pipeline and the submission that are used when none is given.
var (
	//go:embed sample/kernelbot.yml
	samplePipeline string
	//go:embed sample/eval.py
	sampleEval string
	//go:embed sample/submission.py
	sampleSubmission string
)

// sampleConfig is a submission in kernelbot's form that needs only Python.
func sampleConfig() ([]byte, error) {
	return json.Marshal(map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py",
		"sources": map[string]string{"eval.py": sampleEval, "submission.py": sampleSubmission},
		"tests":   []any{map[string]int{"size": 16}, map[string]int{"size": 1024}},
		"seed":    nil, "ranking_by": "last", "test_timeout": 60, "multi_gpu": false,
	})
}

// waitFlags are those of the commands that wait for a build.
type waitFlags struct {
	timeout time.Duration
	asJSON  bool
}

func (w *waitFlags) add(cmd *cobra.Command) {
	cmd.Flags().DurationVar(&w.timeout, "timeout", 20*time.Minute, "how long to wait for the build")
	cmd.Flags().BoolVar(&w.asJSON, "json", false, "print one JSON object")
}

// onBuild is a command whose first argument is a build's number; do gets the others.
func (c *cli) onBuild(use, short string, do func(ctx context.Context, number int, args []string) error) *cobra.Command {
	return c.client(&cobra.Command{Use: use, Short: short, Args: cobra.ExactArgs(strings.Count(use, " ")), RunE: func(cmd *cobra.Command, args []string) error {
		number, err := strconv.Atoi(args[0])
		if err != nil {
			return fmt.Errorf("%q is not the number of a build", args[0])
		}
		return do(cmd.Context(), number, args[1:])
	}})
}

func newSubmit(c *cli) *cobra.Command {
	cmd := c.client(&cobra.Command{Use: "submit", Short: "create a build; --wait waits for it and shows log and result.json", Args: cobra.NoArgs})
	var w waitFlags
	w.add(cmd)
	queue := cmd.Flags().String("queue", "", "queue of the job (KERNELBOT_QUEUE)")
	env := cmd.Flags().StringArray("env", nil, "`NAME=VALUE` of the build; may be repeated")
	jobEnv := cmd.Flags().String("job-env", "", "`FILE` with a JSON object of variables that win over all others of the job")
	config := cmd.Flags().String("config", "", "`FILE` with a submission as JSON, to be encoded (default: a built-in one, without --steps)")
	steps := cmd.Flags().String("steps", "", "`FILE.yml` with steps to run instead of the pipeline's")
	waits := cmd.Flags().Bool("wait", false, "wait for the build, then show log and result.json")
	_ = cmd.MarkFlagRequired("queue") // it is there
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		runID := "run-" + strings.ToLower(rand.Text()[:12])
		nb := buildkite.NewBuild{
			Commit: "HEAD", Branch: "main", Message: "Submitted by bkstub",
			Env:      map[string]string{"KERNELBOT_QUEUE": *queue, "KERNELBOT_RUN_ID": runID},
			MetaData: map[string]string{buildkite.RunIDKey: runID},
		}
		var submission []byte
		var err error
		if *config == "" && *steps == "" { // steps of one's own rarely evaluate a kernel
			if submission, err = sampleConfig(); err != nil {
				return err
			}
		}
		for _, file := range []struct {
			name string
			use  func(text []byte)
		}{
			{*jobEnv, func(text []byte) { nb.MetaData[bktest.JobEnvKey] = string(text) }},
			{*steps, func(text []byte) { nb.Steps = string(text) }},
			{*config, func(text []byte) { submission = text }},
		} {
			if file.name == "" {
				continue
			}
			text, err := os.ReadFile(file.name)
			if err != nil {
				return err
			}
			file.use(text)
		}
		if submission != nil {
			*env = append(payload.Environ(payload.Encode(submission)), *env...)
		}
		for _, variable := range *env {
			name, value, ok := strings.Cut(variable, "=")
			if !ok || name == "" {
				return fmt.Errorf("--env %s: write NAME=VALUE", variable)
			}
			nb.Env[name] = value
		}
		b, err := c.Create(cmd.Context(), org, pipeline, nb)
		switch {
		case err != nil:
			return err
		case *waits:
			return c.follow(cmd.Context(), b.Number, w)
		}
		_, _ = fmt.Fprintln(c.stdout, b.Number)
		return nil
	}
	return cmd
}

func newWait(c *cli) *cobra.Command {
	var w waitFlags
	cmd := c.onBuild("wait N", "wait for build N and show log and result.json", func(ctx context.Context, number int, _ []string) error {
		return c.follow(ctx, number, w)
	})
	w.add(cmd)
	return cmd
}

// patient multiplies a limit by BKSTUB_SLOWNESS, which the virtual machine's rig sets: how many times
// slower the machine is than the one that limits are written for.
func patient(limit time.Duration) time.Duration {
	if slow, err := strconv.ParseFloat(os.Getenv("BKSTUB_SLOWNESS"), 64); err == nil && slow > 1 && slow < 100 {
		limit = time.Duration(float64(limit) * slow)
	}
	return limit
}

// follow reports a build's progress until it has finished, and then what came
// of it. The time-out ends the waiting, never a request: the last look at the
// build is what the message tells.
func (c *cli) follow(ctx context.Context, number int, w waitFlags) error {
	timeout := time.After(patient(w.timeout))
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var last string
	for {
		b, err := c.Build(ctx, org, pipeline, number)
		if err != nil {
			return err
		}
		if now := progress(b); now != last {
			_, _ = fmt.Fprintln(c.stderr, now)
			last = now
		}
		if b.Ended() {
			return c.outcome(ctx, b, w.asJSON)
		}
		select {
		case <-timeout:
			return fmt.Errorf("build %d is still %s after %s", number, b.State, patient(w.timeout))
		case <-tick.C:
		}
	}
}

func progress(b buildkite.Build) string {
	parts := []string{fmt.Sprintf("build %d: %s", b.Number, b.State)}
	for _, j := range b.Jobs {
		switch {
		case j.Agent == nil:
			parts = append(parts, "waits for an agent with "+strings.Join(j.Rules, ", "))
		case j.ExitStatus != nil:
			parts = append(parts, fmt.Sprintf("job %s on %s with exit status %d", j.State, j.Agent.Name, *j.ExitStatus))
		default:
			parts = append(parts, fmt.Sprintf("job %s on %s", j.State, j.Agent.Name))
		}
	}
	return strings.Join(parts, "; ")
}

func (c *cli) outcome(ctx context.Context, b buildkite.Build, asJSON bool) error {
	log, err := c.logs(ctx, b)
	if err != nil {
		return err
	}
	doc, err := c.artifact(ctx, b.Number, result.File)
	if err != nil {
		return err
	}
	switch {
	case asJSON:
		out := struct {
			Build  buildkite.Build `json:"build"`
			Log    string          `json:"log"`
			Result json.RawMessage `json:"result"`
		}{b, log, doc}
		if !json.Valid(doc) {
			out.Result = nil
		}
		enc := json.NewEncoder(c.stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(out)
	case doc != nil:
		_, err = fmt.Fprintf(c.stdout, "%s--- %s\n%s\n", log, result.File, strings.TrimSpace(string(doc)))
	default:
		_, err = io.WriteString(c.stdout, log)
	}
	if b.State != "passed" {
		err = errors.Join(err, errNotPassed)
	}
	return err
}

// logs joins the logs of a build's jobs, with a heading where there are several.
func (c *cli) logs(ctx context.Context, b buildkite.Build) (string, error) {
	var all strings.Builder
	for _, j := range b.Jobs {
		log, err := c.Log(ctx, org, pipeline, b.Number, j.ID)
		if err != nil {
			return "", err
		}
		if len(b.Jobs) > 1 {
			_, _ = fmt.Fprintf(&all, "=== %s (%s)\n", j.Name, j.State)
		}
		all.WriteString(strings.ReplaceAll(bktest.Plain(log), "\r\n", "\n"))
	}
	return all.String(), nil
}

// artifact downloads the newest file that a build has under path; nil means that it has none.
func (c *cli) artifact(ctx context.Context, number int, path string) ([]byte, error) {
	found, err := c.Artifacts(ctx, org, pipeline, number, path)
	if err != nil || len(found) == 0 {
		return nil, err
	}
	const most = 128 << 20
	return c.Download(ctx, found[len(found)-1], most)
}

func newWaitAgents(c *cli) *cobra.Command {
	cmd := c.client(&cobra.Command{Use: "wait-agents", Short: "wait until --count agents are connected", Args: cobra.NoArgs})
	queue := cmd.Flags().String("queue", "", "only agents of this queue")
	count := cmd.Flags().Int("count", 1, "how many agents")
	timeout := cmd.Flags().Duration("timeout", 2*time.Minute, "how long to wait")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := context.WithTimeout(cmd.Context(), patient(*timeout))
		defer stop()
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for {
			all, err := c.Agents(ctx, org) // the server may not be up yet
			connected := 0
			for _, a := range all {
				if !a.Stopping() && !a.StandsIn() && (*queue == "" || buildkite.Tag(a.Tags, "queue") == *queue) {
					connected++
				}
			}
			if err == nil && connected >= *count {
				return nil
			}
			select {
			case <-ctx.Done():
				return errors.Join(fmt.Errorf("%d of %d agents connected after %s", connected, *count, patient(*timeout)), err)
			case <-tick.C:
			}
		}
	}
	return cmd
}
