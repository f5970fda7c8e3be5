// Package operator has the commands that need no node: they send jobs to a queue, watch it, and
// evaluate a submission here.
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/runner"
	"github.com/gpu-mode/kbnode/internal/evaluate/task"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const defaultPipeline = "kernelbot"

// targetFlags say where builds go and how they run there.
type targetFlags struct {
	submit.Target
	api            APIFlags
	dryRun, asJSON bool
}

func (t *targetFlags) add(cmd *cobra.Command, documents ...term.Described) {
	t.api.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&t.Queue, "queue", "", "Buildkite queue of the agents (default: that of --gpu)")
	fl.StringVar(&t.GPU, "gpu", "", "type of GPU, such as B200_BK; sets queue and architecture")
	fl.StringVar(&t.Arch, "arch", "", "architecture for nvcc, such as 90a (default: that of --gpu or of the queue's name)")
	fl.StringVar(&t.Pipeline, "pipeline", "", "pipeline, as in its URL (default: BUILDKITE_PIPELINE, or "+defaultPipeline+")")
	fl.StringVar(&t.Branch, "branch", "main", "branch of the pipeline's repository")
	fl.StringVar(&t.Image, "image", "", "image of the job (default: the pipeline's)")
	fl.BoolVar(&t.Inline, "inline-steps", false, "send the evaluation's steps with the build")
	fl.StringVar(&t.Profile, "profile", "", "with --inline-steps: strict or compatible profile (default: strict)")
	fl.IntVar(&t.Priority, "priority", 0, "with --inline-steps: of the jobs that wait, the highest runs first")
	fl.DurationVar(&t.RunTime, "timeout", 0, "how long a job may run, such as 20m (default: depends on the job)")
	fl.DurationVar(&t.QueueTime, "queue-timeout", 30*time.Minute, "how long it may wait for an agent")
	fl.BoolVar(&t.Force, "force", false, "create builds even if the queue has no agent or the name of other GPUs")
	fl.BoolVar(&t.dryRun, "dry-run", false, "print the requests, and send nothing")
	term.JSONFlag(fl, &t.asJSON, "print JSON", append(documents, requestsDoc)...)
}

// resolve fills in what follows from other flags and the environment. Its error says everything
// that is wrong.
func (t *targetFlags) resolve() error {
	t.Org, t.Pipeline = t.api.Org, pipelineOf(t.Pipeline)
	var err error
	if t.Arch != "" && !task.IsArch(t.Arch) {
		err = fmt.Errorf("--arch %.60q: write %s", t.Arch, task.MeantArch(t.Arch))
	}
	_, orgErr := t.api.org()
	return errors.Join(err, orgErr, t.Resolve())
}

// pipelineOf returns the pipeline that a flag names, or else the environment's.
func pipelineOf(flag string) string {
	return cmp.Or(flag, os.Getenv("BUILDKITE_PIPELINE"), defaultPipeline)
}

func (t *targetFlags) requests(jobs ...submit.Job) (all []request) {
	org := cmp.Or(t.api.Org, os.Getenv("BUILDKITE_ORG"), "ORG")
	at := fmt.Sprintf("%s/v2/organizations/%s/pipelines/%s/builds", buildkite.BaseURL(os.Getenv("BUILDKITE_API_URL")), org, t.Pipeline)
	for _, j := range jobs {
		j.Build.MetaData = map[string]string{buildkite.RunIDKey: j.RunID}
		all = append(all, request{"POST", at, j.Build})
	}
	return all
}

// jobTime returns how long the job of a payload may take; one that the runner refuses ends soon.
func jobTime(doc string) time.Duration {
	o, err := payload.ParseObject(doc)
	if err != nil {
		return submit.Overhead
	}
	programs, _ := runner.MaxTime(o)
	return submit.JobTime(programs)
}

// check returns an error if no agent takes jobs of the queue. It warns of limits that would end a job which
// takes as long as it may.
func (t *targetFlags) check(ctx context.Context, s term.Streams, c *buildkite.Client, need time.Duration) error {
	var tags []string
	if !t.Force {
		var err error
		if tags, err = submit.CheckQueue(ctx, c, t.Org, t.Queue); err != nil {
			return err
		}
	}
	t.warnShort(s, need, submit.ReadLimits(ctx, c, t.Target, tags))
	return nil
}

func (t *targetFlags) warnShort(s term.Streams, need time.Duration, l submit.Limits) {
	for _, w := range t.Short(need, l) {
		s.Warn("%s", w)
	}
}

// printRequests prints requests whole, but on a terminal only the size of a payload, which no one reads and
// which fills the screen.
func printRequests(w io.Writer, requests []request) {
	_, screen := term.Terminal(w)
	for _, r := range requests {
		body := r.Body
		if screen {
			body.Env = maps.Clone(body.Env)
			for name, value := range body.Env {
				if payload.IsVar(name) {
					body.Env[name] = "(" + grouped(len(value)) + " bytes)"
				}
			}
		}
		term.Verbatim(w, fmt.Sprintf("POST %s\nAuthorization: Bearer (hidden)\nContent-Type: application/json\n\n", r.URL))
		_ = term.PrintJSON(w, body) // w keeps the error
	}
}

// grouped returns a number with a comma before every three digits.
func grouped(n int) string {
	if n < 1000 {
		return strconv.Itoa(n)
	}
	return fmt.Sprintf("%s,%03d", grouped(n/1000), n%1000)
}

// APIFlags say which organization of Buildkite's REST API to ask, and with which token.
type APIFlags struct {
	Org, TokenFile string
	without        string // what to do without a token
}

func (a *APIFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.Org, "org", "", "organization, as in its URL (default: BUILDKITE_ORG)")
	cmd.Flags().StringVar(&a.TokenFile, "token-file", "", "file with the API token, readable only by you (default: BUILDKITE_API_TOKEN)")
}

// org returns the organization of the flag, or else of the environment, or "".
func (a *APIFlags) org() (string, error) {
	org := cmp.Or(a.Org, os.Getenv("BUILDKITE_ORG"))
	if org == "" {
		return "", nil
	}
	return org, buildkite.CheckSlug("an organization", org)
}

// Client fills in what the environment says, and connects. Failed requests are retried: log is
// told, or standard error if log is nil.
func (a *APIFlags) Client(s term.Streams, log func(string, time.Duration)) (*buildkite.Client, error) {
	org, orgErr := a.org()
	if org == "" {
		orgErr = errors.New("no organization is given; add --org NAME, such as --org gpu-mode, or set BUILDKITE_ORG" + otherVariable("ORG", "ORGANIZATION", "ORGANIZATION_SLUG", "ORG_SLUG"))
	}
	a.Org = org
	token, tokenErr := a.token()
	if err := errors.Join(orgErr, tokenErr); err != nil {
		return nil, term.Usage(err)
	}
	if log == nil {
		log = func(why string, pause time.Duration) {
			s.Progress("%s; retrying in %s", text.Line(why, 300), max(pause, time.Second).Round(time.Second))
		}
	}
	client, err := buildkite.New(buildkite.Options{URL: os.Getenv("BUILDKITE_API_URL"), Token: token, Patient: true, Log: log})
	if err != nil {
		return nil, term.Usagef("BUILDKITE_API_URL: %w", err)
	}
	return client, nil
}

// otherVariable names the variable that is set in place of one that kbnode reads, by what follows BUILDKITE_.
func otherVariable(name string, others ...string) string {
	for _, other := range others {
		if os.Getenv("BUILDKITE_"+other) != "" {
			return fmt.Sprintf("; BUILDKITE_%s is set, which kbnode does not read: export BUILDKITE_%s=\"$BUILDKITE_%[1]s\"", other, name)
		}
	}
	return ""
}

// token returns the token of --token-file, or else of the environment.
func (a *APIFlags) token() (string, error) {
	from, text := "BUILDKITE_API_TOKEN", os.Getenv("BUILDKITE_API_TOKEN")
	if a.TokenFile != "" {
		secret, err := buildkite.ReadSecret(a.TokenFile)
		if err != nil {
			return "", err
		}
		from, text = a.TokenFile, secret
	} else if text == "" {
		agent := ""
		if os.Getenv("BUILDKITE_AGENT_TOKEN") != "" {
			agent = "; BUILDKITE_AGENT_TOKEN is set, but an agent token is no API token"
		}
		return "", errors.New("no API token is given; create one in Buildkite (Personal Settings, API Access Tokens) with the scopes read_agents and read_builds, " +
			"for kbnode submit also write_builds and read_artifacts, and set BUILDKITE_API_TOKEN, or write it to a file with mode 0600 and add --token-file FILE" +
			otherVariable("API_TOKEN", "TOKEN", "ACCESS_TOKEN", "API_ACCESS_TOKEN", "API_KEY") + cmp.Or(agent, a.without))
	}
	return buildkite.ParseToken(from, text)
}
