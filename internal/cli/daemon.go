package cli

import (
	"context"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/daemon"
	"github.com/gpu-mode/kbnode/internal/events"
	"github.com/gpu-mode/kbnode/internal/health"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/metrics"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
)

func newDaemon(s Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "daemon",
		Short: "Keep this node in its planned state (run by its service)",
		Long: `Keep this node in its planned state: at once when systemd reports that a unit
changed, otherwise every 30 seconds. On SIGHUP, it reads everything again. It never
ends a job, and you can stop it at any time.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd.Context(), s) },
	}
}

func runDaemon(ctx context.Context, s Streams) error {
	if err := s.needRoot("daemon"); err != nil {
		return err
	}
	limitThreads()
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	wake := make(chan struct{})
	go func() {
		for range hup {
			wake <- struct{}{}
		}
	}()
	go node.WatchFirstJobs(ctx, s.logger())
	go node.ContinueUpgrades(ctx, Version(), s.logger())
	m := metrics.New(metrics.Options{
		Version: Version(), Commit: readVersion().Commit, Log: s.logger(),
		Images: func() (image.State, error) { return image.Read(plan.ImageDir) },
	})
	defer m.Close()
	daemon.Run(ctx, daemon.Options{
		Root: "/", Kmsg: health.Kmsg{Owner: health.OwnerOf("/")},
		Node: node.Daemon(Version(), s.logger()), Events: events.Log{File: events.Path}, Log: s.logger(), Wake: wake, Replaced: node.Replaced,
		Publish: m.Publish,
	})
	return nil
}

// saveMemory is for a process that runs all the time, once for each slot: some extra work is
// better than a large heap.
func saveMemory() {
	debug.SetGCPercent(25)
	limitThreads()
}

// limitThreads saves the memory that the runtime keeps for each of hundreds of CPUs.
func limitThreads() { runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0))) }
