// Command bkstub is Buildkite for a machine without a network: it serves the
// stand-in of package bktest, and its other commands drive that over REST as a
// person would on the web site. It keeps nothing on disk.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/test/bktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		os.Exit(1)
	}
}

// errNotPassed ends the program without a message: what there is to say was said.
var errNotPassed = errors.New("the build did not pass")

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	root := &cobra.Command{Use: "bkstub", SilenceUsage: true, SilenceErrors: true}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	c := &cli{stdout: stdout, stderr: stderr}
	root.AddCommand(newServe(stderr), newWaitAgents(c), newSubmit(c), newWait(c),
		c.onBuild("log N", "print the log of build N", func(ctx context.Context, number int, _ []string) error {
			b, err := c.Build(ctx, org, pipeline, number)
			if err != nil {
				return err
			}
			log, err := c.logs(ctx, b)
			_, _ = io.WriteString(c.stdout, log)
			return err
		}),
		c.onBuild("artifact N PATH", "print an artifact of build N", func(ctx context.Context, number int, args []string) error {
			text, err := c.artifact(ctx, number, args[0])
			if err == nil && text == nil {
				return fmt.Errorf("build %d has no artifact %s", number, args[0])
			}
			_, _ = c.stdout.Write(text)
			return err
		}),
		c.onBuild("cancel N", "cancel build N", func(ctx context.Context, number int, _ []string) error {
			return c.Cancel(ctx, org, pipeline, number)
		}))
	err := root.ExecuteContext(ctx)
	if err != nil && !errors.Is(err, errNotPassed) {
		_, _ = fmt.Fprintln(stderr, "bkstub:", err)
	}
	return err
}

func newServe(stderr io.Writer) *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "serve the agent API, REST and the artifact store until stopped", Args: cobra.NoArgs}
	addr := cmd.Flags().String("addr", "127.0.0.1:8899", "address of the APIs")
	tlsAddr := cmd.Flags().String("tls-addr", "", "a second address, with TLS and HTTP/2, over which agents get jobs at once")
	cert := cmd.Flags().String("tls-cert", "/etc/ssl/certs/bkstub.pem", "`FILE` with its certificate and key, made if it is missing; where it is by default, this machine's programs trust it")
	tokens := cmd.Flags().String("agent-tokens", "", "`FILE` of tokens that agents register with, one per line, read at each registration")
	repo := cmd.Flags().String("repo", "", "repository of the pipeline, without which agents run no job")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		log := slog.New(slog.NewTextHandler(stderr, nil))
		o := bktest.Options{Repo: *repo, Steps: samplePipeline}
		if *tokens != "" {
			o.AgentTokens = func() []string {
				text, err := os.ReadFile(*tokens)
				if err != nil {
					log.Error("tokens not read", "err", err)
				}
				return strings.Fields(string(text))
			}
		}
		s := bktest.New(o)
		if *tlsAddr != "" {
			if err := s.ListenTLS(*tlsAddr, *cert); err != nil {
				return err
			}
			_, _ = fmt.Fprintf(stderr, "serving %s\n", s.URL())
		}
		if err := s.Listen(*addr); err != nil {
			return err
		}
		_, _ = fmt.Fprintf(stderr, "serving %s; the endpoint of agents is %s\n", s.URL(), s.Endpoint())
		<-cmd.Context().Done()
		return s.Close()
	}
	return cmd
}

// What bktest serves by default.
const (
	org      = "kbnode"
	pipeline = "kernelbot"
)

// cli is one run of a command that talks to a server.
type cli struct {
	*buildkite.Client
	stdout, stderr io.Writer
}

// client adds what a command needs to talk to a server.
func (c *cli) client(cmd *cobra.Command) *cobra.Command {
	url := cmd.Flags().String("url", "http://127.0.0.1:8899", "where bkstub serves")
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		c.Client, err = buildkite.New(buildkite.Options{URL: *url, Token: bktest.DefaultAPIToken})
		return err
	}
	return cmd
}
