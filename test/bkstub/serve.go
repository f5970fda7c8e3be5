package main

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/gpu-mode/kbnode/test/bktest"
)

func serve(ctx context.Context, c *cli, args []string) error {
	var o bktest.Options
	var files list
	f := c.flags
	addr := f.String("addr", "127.0.0.1:8899", "address of the APIs")
	f.StringVar(&o.AgentToken, "agent-token", bktest.DefaultAgentToken, "token that agents register with")
	tokens := f.String("agent-tokens", "", "`FILE` of tokens that agents register with, one per line, read at each registration")
	f.StringVar(&o.APIToken, "api-token", bktest.DefaultAPIToken, "token for REST")
	f.Var(&files, "pipeline", "`FILE.yml` of a pipeline, which is named like the file; may be repeated (default: a built-in one, kernelbot)")
	repo := f.String("repo", "", "repository of the pipelines (default: one that bkstub serves)")
	f.IntVar(&o.RateLimit, "rate-limit", 0, "REST requests a minute; 0 refuses none")
	verbose := f.Bool("verbose", false, "log every request")
	if _, err := c.parse(args, 0); err != nil {
		return err
	}
	if *tokens != "" {
		o.AgentTokens = func() []string {
			text, err := os.ReadFile(*tokens)
			if err != nil {
				o.Log.Error("tokens not read", "err", err)
			}
			return strings.Fields(string(text))
		}
	}
	level := slog.LevelInfo
	if *verbose {
		level = slog.LevelDebug
	}
	o.Log = slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: level}))
	if len(files) == 0 {
		o.Pipelines = []bktest.Pipeline{{Slug: "kernelbot", Repo: *repo, Steps: samplePipeline}}
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		slug := strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
		o.Pipelines = append(o.Pipelines, bktest.Pipeline{Slug: slug, Repo: *repo, Steps: string(text)})
	}
	s := bktest.New(o)
	if err := s.Listen(*addr, ""); err != nil {
		return err
	}
	c.sayf("serving %s; the endpoint of agents is %s\n", s.URL(), s.Endpoint())
	<-ctx.Done()
	return s.Close()
}
