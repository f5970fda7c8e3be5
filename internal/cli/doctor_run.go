package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/cpuset"
	"github.com/gpu-mode/kbnode/internal/doctor"
)

// doctorRun is one run of kbnode doctor.
type doctorRun struct {
	s Streams
	o doctor.Options
	m *doctor.Machine // as last read
}

func (d *doctorRun) ask(ctx context.Context) (*doctor.Report, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("doctor must run as root; type sudo kbnode doctor")
	}
	life, end := context.WithCancel(ctx)
	src := &doctorSource{s: d.s, m: &machine{root: "/"}, life: life}
	defer src.close()
	defer end() // a check may still wait for systemd
	d.o.Log = d.s.logger()
	d.m = &doctor.Machine{
		Root: "/", Source: src, Now: time.Now(),
		API: doctor.API{Token: os.Getenv("BUILDKITE_API_TOKEN"), URL: os.Getenv("BUILDKITE_API_URL")},
	}
	report, err := doctor.Run(ctx, d.m, d.o)
	if _, unknown := errors.AsType[*doctor.UnknownError](err); unknown || errors.Is(err, doctor.ErrNothingLeft) {
		return nil, usage(err)
	}
	return report, err
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
		if err := d.s.confirm("Run them?", "nothing was changed; add --yes to run these commands"); err != nil {
			return nil, err
		}
	}
	for _, m := range repairs {
		busy, err := d.busy(ctx, m.Slots)
		if err == nil && len(busy) > 0 {
			err = fmt.Errorf("skipped: a job runs in %s %s; run kbnode doctor --fix again when it has ended", plural(len(busy), "slot", "slots"), cpuset.Of(busy...))
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
		return nil, errors.New("skipped: without a plan, kbnode cannot tell whether a job runs there; see kbnode doctor --only plan, and leave out --only")
	}
	host, shut, err := openHost(ctx, d.s)
	if err != nil {
		return nil, err
	}
	defer shut()
	state, err := host.Observe(ctx, d.m.Plan)
	if err != nil {
		return nil, err
	}
	var busy []int
	for _, ss := range state.Slots {
		if ss.Busy() != "" && slices.Contains(slots, ss.Index) {
			busy = append(busy, ss.Index)
		}
	}
	return busy, nil
}

// bundle writes the support archive. It deletes a truncated file, which is of no use.
func (d *doctorRun) bundle(ctx context.Context, name string, report *doctor.Report) error {
	f, err := doctor.CreateBundle(name)
	if err != nil {
		return fmt.Errorf("write bundle: %w", err)
	}
	err = doctor.Bundle(ctx, f, d.m, report, doctor.Value("version.json", func() any { return readVersion() }))
	if err = errors.Join(err, f.Close()); err != nil {
		return errors.Join(err, os.Remove(name))
	}
	d.s.progress("wrote %s; review it before you send it", name)
	return nil
}
