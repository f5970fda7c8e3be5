package probe

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
	"github.com/gpu-mode/kbnode/test/must"
)

// indices returns the NVML indices of the GPUs that answered.
func indices(r *nvml.Report) (all []int) {
	for _, g := range r.GPUs {
		all = append(all, g.Index)
	}
	return all
}

// impatient returns Options that wait for a GPU as long as a busy machine needs to answer.
func (r rig) impatient(t *testing.T, config string) Options {
	t.Helper()
	opts := r.options(t, "driver", config)
	opts.patience, opts.Timeout, opts.runDir = 5*time.Second, must.Patience, t.TempDir()
	return opts
}

// TestHangingGPUs has GPUs that hang: the others are read, whole.
func TestHangingGPUs(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	for name, row := range map[string]struct {
		config string
		want   []nvml.Hung
	}{
		"none":                   {"", nil},
		"the first":              {"gpu.0.hang_gpu = 3600", []nvml.Hung{{}}},
		"before its address":     {"gpu.3.hang_gpu = 3600", []nvml.Hung{{Index: 3}}},
		"after its address":      {"gpu.3.hang.nvmlDeviceGetPowerUsage = 3600", []nvml.Hung{{Index: 3, PCI: "0000:13:00.0"}}},
		"the last":               {"gpu.7.hang.nvmlDeviceGetUUID = 3600", []nvml.Hung{{Index: 7, PCI: "0000:17:00.0"}}},
		"two":                    {"gpu.2.hang_gpu = 3600\ngpu.3.hang_gpu = 3600", []nvml.Hung{{Index: 2}, {Index: 3}}},
		"one, another is lost":   {"gpu.2.hang_gpu = 3600\ngpu.3.handle = 15", []nvml.Hung{{Index: 2}}},
		"not: it is only slow":   {"gpu.2.hang_gpu = 1", nil},
		"not: each is only slow": {"hang_gpu = 1", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report, err := Run(t.Context(), r.impatient(t, row.config))
			must.Do(t, err)
			must.Equal(t, row.want, report.Hung)
			want := []int{}
			for i := range 8 {
				if !slices.ContainsFunc(row.want, func(h nvml.Hung) bool { return h.Index == i }) {
					want = append(want, i)
				}
			}
			must.Equal(t, want, indices(report))
			for _, g := range report.GPUs {
				if lost := strings.Contains(row.config, "handle") && g.Index == 3; g.Unlisted || lost != (g.Busy == nil) || lost != (g.Code == 15) {
					t.Errorf("GPU %d: %+v", g.Index, g)
				}
			}
			if report.Driver == "" || report.CUDA == "" || report.Count != 0 {
				t.Errorf("%+v", report)
			}
		})
	}
}

// TestSilence reads a machine again and again on which a GPU hangs: only the first Run waits for that, and when the GPU
// answers, it is read again.
func TestSilence(t *testing.T) {
	t.Parallel()
	opts := needRig(t).impatient(t, "gpu.3.hang_gpu = 3600\n")
	opts.Silence = &Silence{}
	file := strings.TrimPrefix(opts.Env[1], "KBNODE_FAKE_NVML=")
	_, err := Run(t.Context(), opts)
	must.Do(t, err)
	opts.patience = time.Hour // who waited would end without an answer
	for range 5 {
		report, err := Run(t.Context(), opts)
		must.Do(t, err)
		must.Equal(t, []int{0, 1, 2, 4, 5, 6, 7}, indices(report))
		must.Equal(t, []nvml.Hung{{Index: 3}}, report.Hung)
	}
	must.Do(t, os.WriteFile(file, nil, 0o600))
	must.Until(t, "the GPU", func() bool {
		report, err := Run(t.Context(), opts)
		return err == nil && len(report.GPUs) == 8 && report.Hung == nil
	})
}

// TestOtherGPUs forgets GPUs that hung when there are more or fewer: their indices may be those of others.
func TestOtherGPUs(t *testing.T) {
	t.Parallel()
	opts := needRig(t).impatient(t, "count = 3\n")
	opts.Silence = &Silence{}
	opts.Silence.add(8, []nvml.Hung{{Index: 1, PCI: "0000:1f:00.0"}, {Index: 5}})
	report, err := Run(t.Context(), opts)
	must.Do(t, err)
	must.Equal(t, []int{0, 1, 2}, indices(report))
	must.Equal(t, 0, len(report.Hung))
}

// TestAllHang is a driver that answers, but for no GPU: to those who read, it hangs.
func TestAllHang(t *testing.T) {
	t.Parallel()
	opts := needRig(t).impatient(t, "count = 2\nhang_gpu = 3600")
	opts.Silence = &Silence{}
	for range 2 {
		report, err := Run(t.Context(), opts)
		must.Err(t, err, "NVML does not answer for any GPU")
		if report != nil || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%+v, %v", report, err)
		}
	}
}

// TestOutOfTime ends in the middle: what was read counts, and a GPU that there was no time for is not remembered.
func TestOutOfTime(t *testing.T) {
	t.Parallel()
	opts := needRig(t).impatient(t, "gpu.5.hang_gpu = 3600")
	opts.Timeout, opts.patience, opts.Silence = 3*time.Second, time.Hour, &Silence{}
	report, err := Run(t.Context(), opts)
	must.Do(t, err)
	must.Equal(t, []int{0, 1, 2, 3, 4}, indices(report))
	must.Equal(t, []nvml.Hung{{Index: 5}, {Index: 6}, {Index: 7}}, report.Hung)
	must.Equal(t, 0, len(opts.Silence.hung))
}

// TestDriverLocked hangs on a GPU so that no other probe gets an answer: what was read before counts.
func TestDriverLocked(t *testing.T) {
	t.Parallel()
	path := script(t, `if [ -z "$3" ]; then
	echo '{"schema":1,"ok":true,"count":3,"gpus":[]}'; echo '{"begun":{"index":0}}'; echo '{"gpu":{"index":0}}'; echo '{"begun":{"index":1}}'
fi; exec sleep 1000`)
	report, err := Run(t.Context(), Options{Path: path, Timeout: 8 * time.Second, patience: time.Second, runDir: t.TempDir()})
	must.Do(t, err)
	must.Equal(t, []int{0}, indices(report))
	must.Equal(t, []nvml.Hung{{Index: 1}, {Index: 2}}, report.Hung)
}

// TestStuckProbe has what a probe leaves that cannot be killed: its lock of the GPU, without a process of kbnode's. No
// other one asks for this GPU, of whichever process.
func TestStuckProbe(t *testing.T) {
	t.Parallel()
	opts := needRig(t).impatient(t, "gpu.3.hang_gpu = 3600")
	opts.patience = time.Hour
	stuck, err := os.OpenFile(filepath.Join(opts.runDir, locksName), os.O_CREATE|os.O_RDWR, 0o600)
	must.Do(t, err)
	must.Do(t, unix.FcntlFlock(stuck.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: 1 + 3, Len: 1}))
	for range 2 {
		report, err := Run(t.Context(), opts)
		must.Do(t, err)
		must.Equal(t, []int{0, 1, 2, 4, 5, 6, 7}, indices(report))
	}
	// One that hangs while NVML starts keeps all from it.
	must.Do(t, unix.FcntlFlock(stuck.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Len: 1}))
	opts.Timeout = 500 * time.Millisecond
	if _, err := Run(t.Context(), opts); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	must.Do(t, stuck.Close())
	opts = needRig(t).impatient(t, "")
	report, err := Run(t.Context(), opts)
	must.Do(t, err)
	must.Equal(t, 8, len(report.GPUs))
}

// TestCrashingGPU crashes on a GPU: the others are read. That is no silence, as no one has to wait for it.
func TestCrashingGPU(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		crash, end string // commands while GPU $i is read, and behind the last
		want, err  string
	}{
		"the first":      {"[ $i != 0 ] || kill -SEGV $$", "", "[1 2] [{0 }]", ""},
		"the second":     {"[ $i != 1 ] || kill -SEGV $$", "", "[0 2] [{1 }]", ""},
		"two":            {"[ $i = 1 ] || exit 127", "", "[1] [{0 } {2 }]", ""},
		"behind them":    {"", "kill -SEGV $$", "[0 1 2] []", ""},
		"on each":        {"kill -SEGV $$", "", "", "the NVML probe crashed: signal: segmentation fault"},
		"before the end": {"[ $i != 1 ] || kill -SEGV $$", "exit 5", "[0 2] [{1 }]", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opts := Options{Timeout: must.Patience, runDir: t.TempDir(), Silence: &Silence{}}
			opts.Path = script(t, `echo '{"schema":1,"ok":true,"count":3,"gpus":[]}'
for i in 0 1 2; do
	case ,$3, in *,$i,*) continue ;; esac
	echo "{\"begun\":{\"index\":$i}}"
	`+row.crash+`
	echo "{\"gpu\":{\"index\":$i}}"
done
`+row.end)
			for range 2 {
				r, err := Run(t.Context(), opts)
				must.Err(t, err, row.err)
				if errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a crash passes for a hang: %v", err)
				}
				if err == nil {
					must.Equal(t, row.want, fmt.Sprint(indices(r), " ", r.Hung))
				}
			}
			must.Equal(t, 0, len(opts.Silence.hung))
		})
	}
}

// TestHangingEnd hangs as NVML ends, when all GPUs were read. One probe does that, and while it does, no other one joins it.
func TestHangingEnd(t *testing.T) {
	t.Parallel()
	r := needRig(t)
	opts := r.impatient(t, "hang.nvmlShutdown = 3600")
	starts := filepath.Join(t.TempDir(), "starts")
	opts.Path = script(t, "echo >>"+starts+"; exec "+r.probe+` "$@"`)
	report, err := Run(t.Context(), opts)
	must.Do(t, err)
	must.Equal(t, 8, len(report.GPUs))
	must.Equal(t, "\n", must.Read(t, starts))

	locks, err := os.OpenFile(filepath.Join(opts.runDir, locksName), os.O_CREATE|os.O_RDWR, 0o600)
	must.Do(t, err)
	defer locks.Close() //nolint:errcheck // only locked
	stuck := exec.CommandContext(t.Context(), r.probe, "all", "--locks")
	stuck.Env, stuck.ExtraFiles = opts.Env, []*os.File{locks}
	stdout, err := stuck.StdoutPipe()
	must.Do(t, err)
	must.Do(t, stuck.Start())
	for lines := bufio.NewReader(stdout); ; {
		line, err := lines.ReadString('\n')
		must.Do(t, err)
		if strings.HasPrefix(line, `{"gpu":{"index":7`) {
			break
		}
	}
	other, err := os.OpenFile(locks.Name(), os.O_RDWR, 0)
	must.Do(t, err)
	defer other.Close() //nolint:errcheck // only locked
	must.Until(t, "the lock", func() bool {
		at := unix.Flock_t{Type: unix.F_WRLCK, Len: 1}
		must.Do(t, unix.FcntlFlock(other.Fd(), unix.F_OFD_GETLK, &at))
		return at.Type != unix.F_UNLCK
	})
	opts.Timeout = 500 * time.Millisecond
	if _, err := Run(t.Context(), opts); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	_ = stuck.Process.Kill()
	_ = stuck.Wait()
}

// TestLines parses what probes print, to the end or not.
func TestLines(t *testing.T) {
	t.Parallel()
	const head = `{"schema":1,"ok":true,"count":2,"gpus":[]}` + "\n"
	for _, row := range []struct{ name, text, want, err string }{
		{"nothing", "", "", "unexpected end of JSON input"},
		{"another probe's", "{\n  \"schema\": 1\n}\n", "", "unexpected end of JSON input"},
		{"no GPU", head, "[] []", ""},
		{"begun", head + `{"begun":{"index":0}}` + "\n", "[] [{0 }]", ""},
		{"with its address", head + `{"begun":{"index":0}}` + "\n" + `{"begun":{"index":0,"pci":"0000:10:00.0"}}` + "\n", "[] [{0 0000:10:00.0}]", ""},
		{"cut off", head + `{"begun":{"index":0}}` + "\n" + `{"gpu":{"index":0}}`, "[] [{0 }]", ""},
		{"read", head + `{"begun":{"index":0}}` + "\n" + `{"gpu":{"index":0}}` + "\n" + `{"begun":{"index":1}}` + "\n", "[0] [{1 }]", ""},
		{"a GPU too many", head + `{"begun":{"index":2}}` + "\n", "", "it is about GPU 2 of 2"},
		{"a GPU before the first", head + `{"gpu":{"index":-1}}` + "\n", "", "it is about GPU -1 of 2"},
		{"about nothing", head + "{}\n", "", "it is about GPU -1 of 2"},
		{"garbage", head + "oops\n", "", "invalid character"},
		{"more GPUs than there are", `{"schema":1,"ok":true,"count":4294967295,"gpus":[]}`, "", "it is about 4294967295 GPUs"},
	} {
		r, err := parseLines([]byte(row.text))
		must.Err(t, err, row.err)
		if err != nil {
			continue
		}
		if got := fmt.Sprint(indices(r), " ", r.Hung); got != row.want {
			t.Errorf("%s: got %s, want %s", row.name, got, row.want)
		}
	}
}
