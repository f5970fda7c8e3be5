package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/buildkite"
	"github.com/gpu-mode/kbnode/internal/payload"
	"github.com/gpu-mode/kbnode/internal/result"
	"github.com/gpu-mode/kbnode/test/bktest"
)

// waitFlags are those of the commands that wait for a build.
type waitFlags struct {
	timeout time.Duration
	asJSON  bool
}

func (w *waitFlags) register(c *cli) {
	c.flags.DurationVar(&w.timeout, "timeout", 20*time.Minute, "how long to wait for the build")
	c.flags.BoolVar(&w.asJSON, "json", false, "print one JSON object")
}

func submit(ctx context.Context, c *cli, args []string) error {
	var w waitFlags
	var env list
	c.clientFlags()
	w.register(c)
	queue := c.flags.String("queue", "", "queue of the job (KERNELBOT_QUEUE)")
	c.flags.Var(&env, "env", "`NAME=VALUE` of the build; may be repeated")
	jobEnv := c.flags.String("job-env", "", "`FILE` with a JSON object of variables that win over all others of the job")
	encoded := c.flags.String("payload", "", "`FILE` with an encoded payload")
	config := c.flags.String("config", "", "`FILE` with a submission as JSON, to be encoded (default: a built-in one)")
	payloadVar := c.flags.String("payload-env", "", "variable that carries the payload (default KERNELBOT_PAYLOAD, in pieces if it is long)")
	steps := c.flags.String("steps", "", "`FILE.yml` with steps to run instead of the pipeline's")
	waits := c.flags.Bool("wait", false, "wait for the build, then show log and result.json")
	if _, err := c.parse(args, 0); err != nil {
		return err
	}
	if *queue == "" {
		return usageError{errors.New("no queue; add --queue, such as --queue b200")}
	}
	runID := "run-" + strings.ToLower(rand.Text()[:12])
	nb := buildkite.NewBuild{
		Commit: "HEAD", Branch: "main", Message: "Submitted by bkstub",
		Env:      map[string]string{"KERNELBOT_QUEUE": *queue, "KERNELBOT_RUN_ID": runID},
		MetaData: map[string]string{buildkite.RunIDKey: runID},
	}
	if *jobEnv != "" {
		text, err := os.ReadFile(*jobEnv)
		if err != nil {
			return err
		}
		nb.MetaData[bktest.JobEnvKey] = string(text)
	}
	if *steps != "" {
		text, err := os.ReadFile(*steps)
		if err != nil {
			return err
		}
		nb.Steps = string(text)
	}
	carried, err := payloadEnv(*encoded, *config, *payloadVar, *steps != "")
	if err != nil {
		return err
	}
	for _, kv := range append(carried, env...) {
		k, v, ok := strings.Cut(kv, "=")
		if !ok || k == "" {
			return usageError{fmt.Errorf("--env %s: write NAME=VALUE", kv)}
		}
		nb.Env[k] = v
	}
	b, err := c.api.Create(ctx, org, c.api.pipeline, nb)
	if err != nil {
		return err
	}
	if *waits {
		return follow(ctx, c, b.Number, w)
	}
	if w.asJSON {
		return c.printJSON(b)
	}
	c.printf("%d\n", b.Number)
	return nil
}

// payloadEnv returns the environment strings that carry the submission.
func payloadEnv(encoded, config, variable string, ownSteps bool) ([]string, error) {
	var text string
	switch {
	case encoded != "" && config != "":
		return nil, usageError{errors.New("--payload and --config cannot be combined; give one")}
	case encoded != "":
		b, err := os.ReadFile(encoded)
		if err != nil {
			return nil, err
		}
		text = strings.TrimSpace(string(b))
	case config != "":
		b, err := os.ReadFile(config)
		if err != nil {
			return nil, err
		}
		if !json.Valid(b) {
			return nil, fmt.Errorf("%s is not JSON", config)
		}
		text = payload.Encode(b)
	case ownSteps:
		return nil, nil // steps of one's own rarely evaluate a kernel
	default:
		b, err := sampleConfig()
		if err != nil {
			return nil, err
		}
		text = payload.Encode(b)
	}
	if variable != "" {
		return []string{variable + "=" + text}, nil
	}
	return payload.Environ(text), nil
}

func wait(ctx context.Context, c *cli, args []string) error {
	var w waitFlags
	c.clientFlags()
	w.register(c)
	number, _, err := c.parseNumber(args, 1)
	if err != nil {
		return err
	}
	return follow(ctx, c, number, w)
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
func follow(ctx context.Context, c *cli, number int, w waitFlags) error {
	timeout := time.After(patient(w.timeout))
	tick := time.NewTicker(500 * time.Millisecond)
	defer tick.Stop()
	var said string
	for {
		b, err := c.api.build(ctx, number)
		if err != nil {
			return err
		}
		if now := progress(b); now != said {
			c.sayf("%s\n", now)
			said = now
		}
		if b.Ended() {
			return c.outcome(ctx, b, w)
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

func (c *cli) outcome(ctx context.Context, b buildkite.Build, w waitFlags) error {
	log, err := c.logs(ctx, b)
	if err != nil {
		return err
	}
	doc, err := c.api.artifact(ctx, b.Number, result.File)
	if err != nil && !errors.Is(err, errNoArtifact) {
		return err
	}
	if w.asJSON {
		out := struct {
			Build  buildkite.Build `json:"build"`
			Log    string          `json:"log"`
			Result json.RawMessage `json:"result"`
		}{b, log, doc}
		if !json.Valid(doc) {
			out.Result = nil
		}
		if err := c.printJSON(out); err != nil {
			return err
		}
	} else {
		c.printf("%s", log)
		if doc != nil {
			c.printf("--- %s\n%s\n", result.File, strings.TrimSpace(string(doc)))
		}
	}
	if b.State != "passed" {
		return errFailed
	}
	return nil
}

// logs joins the logs of a build's jobs, with a heading where there are several.
func (c *cli) logs(ctx context.Context, b buildkite.Build) (string, error) {
	var all strings.Builder
	for _, j := range b.Jobs {
		log, err := c.api.Log(ctx, org, c.api.pipeline, b.Number, j.ID)
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

func (c *cli) printJSON(v any) error {
	enc := json.NewEncoder(c.stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}
