package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job/pipeline"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

type createFlags struct {
	api                                               APIFlags
	cluster, tokenFile, description, name, repository string
}

func newQueueCreate(s term.Streams) *cobra.Command {
	var f createFlags
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Make a self-hosted queue in Buildkite, and what nodes and jobs of it need",
		Long: `Make a self-hosted queue in Buildkite, unless there is one.

With --agent-token-file, also make a token with which nodes register, and write it to a new
file that only you may read: Buildkite shows it once. With --pipeline, also make a
pipeline with the steps that kbnode pipeline prints.

The API token needs the scopes read_clusters and write_clusters, for --pipeline also
write_pipelines, and its owner must be a maintainer of the cluster.`,
		Example: `  kbnode queue create b200 --org gpu-mode
  kbnode queue create b200 --cluster 'Default cluster' --agent-token-file token.txt
  kbnode queue create b200 --pipeline kernelbot --repository https://github.com/gpu-mode/kernelbot`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("name one queue, as in kbnode queue create b200")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), s, args[0]) },
	}
	f.api.add(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.cluster, "cluster", "", "cluster of the queue (default: the only one)")
	fl.StringVar(&f.tokenFile, "agent-token-file", "", "also make an agent token, and write it to this new `FILE`")
	fl.StringVar(&f.description, "description", "", "description of the queue and the token (default: GPU nodes with kbnode)")
	fl.StringVar(&f.name, "pipeline", "", "also make a pipeline of this name")
	fl.StringVar(&f.repository, "repository", "", "with --pipeline: the repository that its jobs check out, as an https URL")
	return cmd
}

func (f *createFlags) run(ctx context.Context, s term.Streams, queue string) error {
	err := buildkite.CheckQueueKey(queue)
	if (f.name == "") != (f.repository == "") {
		err = errors.Join(err, errors.New("--pipeline and --repository need each other; give both, such as --pipeline kernelbot --repository https://github.com/gpu-mode/kernelbot"))
	}
	if at, bad := url.Parse(f.repository); f.repository != "" && (bad != nil || at.Scheme != "https" || at.Host == "" || at.User != nil) {
		err = errors.Join(err, errors.New("--repository is not a public address; write it as https://github.com/gpu-mode/kernelbot"))
	}
	if err := errors.Join(err, term.CheckNew("--agent-token-file", f.tokenFile)); err != nil {
		return term.Usage(err)
	}
	client, err := f.api.Client(s, nil)
	if err != nil {
		return err
	}
	at, err := client.Cluster(ctx, f.api.Org, f.cluster)
	if err != nil {
		return err
	}
	about := cmp.Or(f.description, "GPU nodes with kbnode")
	made, err := client.CreateQueue(ctx, f.api.Org, at, queue, about)
	if err != nil {
		return err
	}
	if made {
		term.Printf(s.Out, "Queue %s was made in the cluster %s.\n", queue, text.Line(at.Name, 100))
	} else {
		term.Printf(s.Out, "Queue %s is in the cluster %s already.\n", queue, text.Line(at.Name, 100))
	}
	if f.tokenFile != "" {
		if err := f.writeToken(func() (string, error) { return client.CreateAgentToken(ctx, f.api.Org, at, about) }); err != nil {
			return err
		}
		term.Printf(s.Out, "The agent token is in %s. On each node, type\n  %s\n", f.tokenFile, s.Line([]string{"install", "--queue", queue, "--token-file", f.tokenFile}))
	}
	if f.name != "" {
		steps, err := pipeline.Build(pipeline.Eval, pipeline.Options{})
		if err != nil {
			return err
		}
		slug, err := client.CreatePipeline(ctx, f.api.Org, buildkite.NewPipeline{Name: f.name, Repository: f.repository, Configuration: string(steps.YAML()), ClusterID: at.ID})
		if err != nil {
			return err
		}
		term.Printf(s.Out, "Pipeline %s was made.\n", cmp.Or(slug, f.name))
	}
	return nil
}

// writeToken makes the file before the token, which is told only once.
func (f *createFlags) writeToken(token func() (string, error)) error {
	file, err := os.OpenFile(f.tokenFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("write agent token: %w", err)
	}
	secret, err := token()
	if err == nil {
		_, err = file.WriteString("BUILDKITE_AGENT_TOKEN=" + secret + "\n")
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return errors.Join(err, os.Remove(f.tokenFile))
	}
	return nil
}
