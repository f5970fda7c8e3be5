package runner

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
)

// exitUsage is the exit code for a wrong command line.
const exitUsage = 2

// Flags defines the command line options.
func (o *Options) Flags(f *flag.FlagSet) {
	f.StringVar(&o.Payload, "payload", "", `file with an encoded payload, "-" for standard input`)
	f.StringVar(&o.Config, "config", "", `file with a payload as JSON text, "-" for standard input`)
	f.StringVar(&o.Dir, "workdir", "", "where the program runs and result.json is written (default: current directory)")
}

// Check refuses options that contradict each other. given reports whether an option was given.
func (o *Options) Check(given func(name string) bool) error {
	for _, f := range []struct{ name, value string }{{"payload", o.Payload}, {"config", o.Config}} {
		if given(f.name) && f.value == "" {
			return fmt.Errorf("--%s names no file; give one, or - for standard input", f.name)
		}
	}
	if o.Payload != "" && o.Config != "" {
		return errors.New("--payload and --config each name a payload; give one of them")
	}
	return nil
}

// Command runs kbnode runner with these arguments and returns its exit code.
func Command(ctx context.Context, args []string) int {
	o := Options{Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr}
	f := flag.NewFlagSet("kbnode runner", flag.ContinueOnError)
	f.SetOutput(o.Stderr)
	o.Flags(f)
	switch err := f.Parse(args); {
	case errors.Is(err, flag.ErrHelp): // f has printed the options
		return 0
	case err != nil: // f has printed it
		return exitUsage
	}
	given := map[string]bool{}
	f.Visit(func(f *flag.Flag) { given[f.Name] = true })
	err := o.Check(func(name string) bool { return given[name] })
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("%q: kbnode runner takes only options; see kbnode runner --help", f.Arg(0))
	}
	if err != nil {
		_, _ = fmt.Fprintf(o.Stderr, "kbnode: %v\n", err)
		return exitUsage
	}
	return Main(ctx, o)
}
