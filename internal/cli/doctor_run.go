package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/gpu-mode/kbnode/internal/bundle"
	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/doctor"
	"github.com/gpu-mode/kbnode/internal/text"
)

// doctorRun is one run of kbnode doctor.
type doctorRun struct {
	s Streams
	o doctor.Options
	m *doctor.Machine // as last read
}

func (d *doctorRun) ask(ctx context.Context) (*doctor.Report, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if err := d.s.toRead("doctor"); err != nil {
		return nil, err
	}
	report, m, err := here(d.s).Doctor(ctx, d.o, buildkiteAPI())
	d.m = m
	return report, err
}

// check returns what is wrong with the options, before anything is asked of the machine.
func (d *doctorRun) check() error {
	o := d.o
	o.Checks = doctor.All()
	_, err := o.Choose()
	return usage(err)
}

// buildkiteAPI returns what the environment says of Buildkite's REST API.
func buildkiteAPI() doctor.API {
	return doctor.API{Token: os.Getenv("BUILDKITE_API_TOKEN"), URL: os.Getenv("BUILDKITE_API_URL")}
}

// fix runs the repairs that end no job, and runs all checks again.
func (d *doctorRun) fix(ctx context.Context, report *doctor.Report, yes bool) (*doctor.Report, error) {
	repairs := report.Repairs()
	if len(repairs) == 0 {
		d.s.progress("there is nothing that --fix can repair")
		return report, nil
	}
	for _, m := range repairs {
		d.s.progress("to run: %s   (%s)", m.Command, strings.Join(m.Checks, ", "))
	}
	if !yes {
		if err := d.s.confirm(ctx, "Run them?", "nothing was changed; add --yes to run these commands"); err != nil {
			return nil, err
		}
	}
	for _, m := range repairs {
		busy, err := d.busy(ctx, m.Slots)
		if err == nil && len(busy) > 0 {
			err = fmt.Errorf("skipped: a job runs in %s %s; type %s when it has ended", text.Plural(len(busy), "slot", "slots"), cpuset.Of(busy...), d.s.again())
		}
		if err == nil {
			d.s.progress("running: %s", m.Command)
			err = m.Run(ctx, d.s.Err)
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			d.s.warn("%v", err) // the next report shows what is not repaired
		}
	}
	return d.ask(ctx)
}

// busy returns which of the slots run a job now.
func (d *doctorRun) busy(ctx context.Context, slots []int) ([]int, error) {
	if len(slots) == 0 {
		return nil, nil
	}
	if d.m.Plan == nil {
		return nil, errors.New("skipped: without a plan, kbnode cannot tell whether a job runs there; see sudo kbnode doctor --only plan, and leave out --only")
	}
	return here(d.s).Busy(ctx, d.m.Plan, slots)
}

// bundle writes the support archive. It deletes a truncated file, which is of no use.
func (d *doctorRun) bundle(ctx context.Context, name string, report *doctor.Report) error {
	f, err := bundle.Create(name)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	err = bundle.Write(ctx, f, d.m, report, bundle.Value("version.json", func() any { return readVersion() }))
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	d.s.progress("wrote %s; review it before you send it", name)
	return nil
}
