// Command bkstub is Buildkite for a machine without a network: it serves the
// stand-in of package bktest, and its other commands drive that over REST as a
// person would on the web site. It keeps nothing on disk.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/gpu-mode/kbnode/test/bktest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// errFailed makes run exit 1 without a message: what there is to say was said.
var errFailed = errors.New("the build did not pass")

// usageError makes run exit 2.
type usageError struct{ error }

type command struct {
	name, args, does string
	run              func(ctx context.Context, c *cli, args []string) error
}

func commands() []command {
	return []command{
		{"serve", "", "serve the agent API, REST and the artifact store until stopped", serve},
		{"submit", "--queue Q", "create a build; --wait waits for it and shows log and result.json", submit},
		{"wait", "N", "wait for build N and show log and result.json", wait},
		{"log", "N", "print the log of build N", showLog},
		{"artifact", "N PATH", "print an artifact of build N", artifact},
		{"cancel", "N", "cancel build N", cancel},
		{"agents", "", "list the agents: name, queue, state, job", agents},
		{"wait-agents", "", "wait until --count agents are connected", waitAgents},
	}
}

// run is the program; it returns the exit code: 0 done, 1 no, 2 usage.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	c := &cli{stdout: stdout, stderr: stderr}
	err := dispatch(ctx, c, args)
	var usage usageError
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
		return 0
	case errors.As(err, &usage):
		_, _ = fmt.Fprintln(stderr, "bkstub:", err)
		return 2
	case !errors.Is(err, errFailed):
		_, _ = fmt.Fprintln(stderr, "bkstub:", err)
	}
	return 1
}

func dispatch(ctx context.Context, c *cli, args []string) error {
	var names []string
	for _, cmd := range commands() {
		if len(args) > 0 && args[0] == cmd.name {
			c.flags = flag.NewFlagSet("bkstub "+cmd.name, flag.ContinueOnError)
			c.flags.SetOutput(c.stderr)
			c.flags.Usage = func() {
				c.sayf("usage: bkstub %s [flags] %s\n%s\n", cmd.name, cmd.args, cmd.does)
				c.flags.PrintDefaults()
			}
			return cmd.run(ctx, c, args[1:])
		}
		names = append(names, cmd.name)
	}
	for _, cmd := range commands() {
		c.sayf("  bkstub %-12s %-10s %s\n", cmd.name, cmd.args, cmd.does)
	}
	if len(args) > 0 && (args[0] == "help" || args[0] == "-h" || args[0] == "--help") {
		return flag.ErrHelp
	}
	return usageError{fmt.Errorf("want one of %s", strings.Join(names, ", "))}
}

// cli is one run of the program.
type cli struct {
	stdout, stderr io.Writer
	flags          *flag.FlagSet
	api            client
}

func (c *cli) sayf(format string, args ...any)   { _, _ = fmt.Fprintf(c.stderr, format, args...) }
func (c *cli) printf(format string, args ...any) { _, _ = fmt.Fprintf(c.stdout, format, args...) }

// parse reads flags, which may stand before and after the want positional
// arguments, and returns those.
func (c *cli) parse(args []string, want int) ([]string, error) {
	var rest []string
	for {
		if err := c.flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				return nil, err
			}
			return nil, usageError{err}
		}
		if c.flags.NArg() == 0 {
			break
		}
		rest, args = append(rest, c.flags.Arg(0)), c.flags.Args()[1:]
	}
	if len(rest) != want {
		return nil, usageError{fmt.Errorf("%d arguments; see %s --help", len(rest), c.flags.Name())}
	}
	if c.api.url == "" { // it serves
		return rest, nil
	}
	return rest, c.api.connect()
}

// parseNumber is parse for a build's number and other arguments.
func (c *cli) parseNumber(args []string, want int) (number int, rest []string, err error) {
	rest, err = c.parse(args, want)
	if err != nil {
		return 0, nil, err
	}
	if number, err = strconv.Atoi(rest[0]); err != nil {
		return 0, nil, usageError{fmt.Errorf("%q is not the number of a build", rest[0])}
	}
	return number, rest[1:], nil
}

// clientFlags are those of every command that talks to a server.
func (c *cli) clientFlags() {
	env := func(name, def string) string {
		if v := os.Getenv(name); v != "" {
			return v
		}
		return def
	}
	c.flags.StringVar(&c.api.url, "url", env("BKSTUB_URL", "http://127.0.0.1:8899"), "where bkstub serves (or BKSTUB_URL)")
	c.flags.StringVar(&c.api.token, "api-token", env("BKSTUB_API_TOKEN", bktest.DefaultAPIToken), "token for REST (or BKSTUB_API_TOKEN)")
	c.flags.StringVar(&c.api.pipeline, "pipeline", "kernelbot", "pipeline of the build")
}

// list collects a flag that may be given several times.
type list []string

func (l *list) String() string { return strings.Join(*l, ",") }

func (l *list) Set(v string) error {
	*l = append(*l, v)
	return nil
}
