package runner

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

const (
	ncuReport    = "profile.ncu-rep"
	ncuTextLimit = 16 << 20 // bytes of each text that ncu prints of it
)

// ncuDetails are the files with what ncu prints of its report, and its options, as popcorn-cli's profilers have them.
// Source: gpu-mode/popcorn-cli docs/profiling.md, and _profile_ncu of its local mode.
var ncuDetails = []struct {
	name    string
	options []string
}{
	{"ncu-details.txt", []string{"--page", "details"}},
	{"ncu-details.csv", []string{"--page", "details", "--csv"}},
}

func (e *engine) ncu(ctx context.Context, r recording, p program) (*result.Run, *result.Profile, error) {
	file := path.Join(r.dir(), ncuReport)
	p = e.underProfiler(p, "ncu", "--set", "full", "--nvtx", "--nvtx-include", "custom_kernel/",
		"--import-source", "1", "-c", "10", "-o", file, "--")
	p.env = setenv(p.env, "POPCORN_NCU", "1")
	o, err := p.run(ctx)
	if err != nil {
		return nil, nil, err
	}
	run := e.report(p, o)
	if o.cancelled {
		return run, nil, nil
	}
	text := &bounded{limit: ncuTextLimit}
	until := time.Now().Add(reportLimit * time.Second)
	printed, err := e.runAlone(ctx, program{
		argv: []string{"ncu", "--import", file, "--print-details", "body"}, limit: seconds(reportLimit), stdout: text,
	})
	if err != nil {
		return nil, nil, err
	}
	if printed.exitCode == 0 && !printed.timedOut && !printed.cancelled {
		report := filterReport(newlines(decode(text.buf)))
		run.Result.Set("benchmark.0.report", base64.StdEncoding.EncodeToString([]byte(report)))
	}
	if !run.Success {
		return run, nil, nil
	}
	if err := e.writeDetails(ctx, &r, file, until); err != nil {
		return nil, nil, err
	}
	return run, e.trace(r, "Nsight-Compute"), nil
}

// writeDetails leaves ncu's details of a report beside it. A text that cannot be had by then is left out: the report has all.
func (e *engine) writeDetails(ctx context.Context, r *recording, report string, until time.Time) error {
	for _, d := range ncuDetails {
		text := &bounded{limit: ncuTextLimit}
		printed, err := e.runAlone(ctx, program{
			argv: append([]string{"ncu", "--import", report}, d.options...), limit: seconds(max(1, int(time.Until(until).Seconds()))), stdout: text,
		})
		switch {
		case err != nil:
			return err
		case printed.cancelled:
			return nil
		case printed.timedOut:
			err = fmt.Errorf("ncu took more than %d s for all that it prints", reportLimit)
		case printed.exitCode != 0:
			err = fmt.Errorf("ncu ended with %d", printed.exitCode)
		case text.over:
			text.buf = text.buf[:bytes.LastIndexByte(text.buf, '\n')+1]
			e.note("%s: %s ends after %d bytes", r.name, d.name, len(text.buf))
		}
		if err == nil {
			err = e.putText(r, d.name, text.buf)
		}
		if err != nil {
			e.note("%s: %s is left out: %v", r.name, d.name, err)
		}
	}
	return nil
}

// putText writes a file into a recording, in the place of any that the program left.
func (e *engine) putText(r *recording, name string, text []byte) error {
	if info, err := e.src.root.Lstat(r.dir()); err != nil || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s is no longer a directory", r.dir()))
	}
	name = path.Join(r.dir(), name)
	if err := tree.Remove(e.src.root, name); err != nil {
		return err
	}
	if err := writeFile(e.src.root, name, text, 0o666); err != nil {
		return err
	}
	r.texts = append(r.texts, path.Base(name))
	return nil
}

// reportTables are the tables of ncu's report that submitters see.
var reportTables = []string{"GPU Throughput", "Pipe Utilization (% of active cycles)", "Warp State (All Cycles)"}

// filterReport reduces ncu's output to the names of the kernels and, for the first two,
// the most useful tables.
func filterReport(text string) string {
	const (
		mark     = "Table Name :"
		maxLines = 101
		more     = "Please check the .ncu-rep file for more details.\n"
	)
	var out bytes.Buffer
	kernels, lines, collect := 0, 0, false
	for line := range splitLines(text) {
		line = chomp(line)
		if startsKernel(line) {
			kernels++
			if kernels > 1 {
				out.WriteByte('\n')
			}
			if kernels == 3 {
				out.WriteString("\nAdditional kernel launches follow. " + more)
			}
			out.WriteString(line + "\n")
		}
		if kernels > 2 {
			continue
		}
		if strings.Contains(line, mark+" ") {
			_, name, _ := strings.Cut(line, mark)
			collect = slices.Contains(reportTables, strip(name))
			if collect {
				out.WriteByte('\n')
			}
		}
		if strip(line) == "" {
			collect = false
		}
		if !collect {
			continue
		}
		out.WriteString(line + "\n")
		lines++
		if lines == maxLines {
			out.WriteString("\n[...]\nReport has been truncated. " + more)
			break
		}
	}
	return out.String()
}

// startsKernel reports whether a line names a kernel: it is indented less than the
// lines about the kernel.
func startsKernel(line string) bool {
	// Characters, not bytes.
	r := []rune(line[:min(len(line), 12)])
	return len(r) >= 3 && r[1] == ' ' && r[2] != ' '
}
