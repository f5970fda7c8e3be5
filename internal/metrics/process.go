package metrics

import (
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
)

// registerProcess registers the metrics of this process under their standard names. The
// client's own collector is in a package that links database drivers.
func (e *Exporter) registerProcess() {
	started := seconds(time.Now())
	e.registry.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "process_resident_memory_bytes", Help: "Memory of the daemon.",
		}, residentBytes),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "process_cpu_seconds_total", Help: "CPU time of the daemon.",
		}, cpuSeconds),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "process_start_time_seconds", Help: "When the daemon started.",
		}, func() float64 { return started }),
	)
}

// residentBytes returns the second field of /proc/self/statm (proc_pid_statm(5)) in bytes,
// 0 if it cannot be read.
func residentBytes() float64 {
	text, err := os.ReadFile("/proc/self/statm")
	fields := strings.Fields(string(text))
	if err != nil || len(fields) < 2 {
		return 0
	}
	pages, err := strconv.ParseUint(fields[1], 10, 64)
	if err != nil {
		return 0
	}
	return float64(pages) * float64(os.Getpagesize())
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()).Seconds()
}
