package cli

import (
	"context"
	"errors"
	"net"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/job/guard"
	"github.com/gpu-mode/kbnode/internal/machine/disk"
	"github.com/gpu-mode/kbnode/internal/machine/hook"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/daemon"
	"github.com/gpu-mode/kbnode/internal/node/events"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/metrics"
	"github.com/gpu-mode/kbnode/internal/node/notify"
	"github.com/gpu-mode/kbnode/internal/node/standin"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// Units and hooks start the commands of this file, not people.

func slotFlag(cmd *cobra.Command, k *int) {
	cmd.Flags().IntVar(k, "slot", -1, "number of the slot")
	_ = cmd.MarkFlagRequired("slot")
}

func newClear() *cobra.Command {
	var k int
	var ended bool
	cmd := &cobra.Command{
		Use:    "clear",
		Short:  "Clear a slot before its agent starts, or after its end (started by its unit)",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			clear := bootstrap.Clear
			if ended {
				clear = bootstrap.ClearEnded
			}
			err := clear(cmd.Context(), plan.SocketPath(k))
			if cmd.Context().Err() != nil {
				return nil // it was asked to stop
			}
			return err
		},
	}
	slotFlag(cmd, &k)
	cmd.Flags().BoolVar(&ended, "ended", false, "the agent has ended")
	return cmd
}

func newRunJob(s term.Streams) *cobra.Command {
	var k int
	cmd := &cobra.Command{
		Use:    "run-job",
		Short:  "Run the job that a client of the slot's socket asks for (started by its unit)",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			conn, err := net.FileConn(os.Stdin)
			if err != nil {
				return term.Usagef("run-job answers a connection that systemd has accepted; leave it to the slot's unit")
			}
			client, ok := conn.(*net.UnixConn)
			if !ok {
				return term.Usagef("run-job answers a connection to a slot's socket; leave it to the slot's unit")
			}
			pol, err := slot.ReadPolicy("/", k)
			if err != nil {
				return errors.Join(err, slot.NewFrames(client).End(slot.Outcome{NodeFault: err.Error()}))
			}
			limitThreads()
			return guard.Answer(cmd.Context(), pol, client, s.Logger())
		},
	}
	slotFlag(cmd, &k)
	return cmd
}

func newRunHook() *cobra.Command {
	var k int
	cmd := &cobra.Command{
		Use:    "run-hook NAME",
		Short:  "Become a hook of the site (started by its unit)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if !slices.Contains(hook.Names, args[0]) {
				return term.Usagef("%q is not a hook of the site; use %s", args[0], strings.Join(hook.Names, " or "))
			}
			pol, err := slot.ReadPolicy("/", k)
			if err != nil {
				return err
			}
			return hook.Exec(pol, args[0])
		},
	}
	slotFlag(cmd, &k)
	return cmd
}

func newHook(s term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "hook NAME",
		Short:  "Run a Buildkite hook of a slot (started by the hook's script)",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] != "agent-startup" {
				return term.Usagef("%q is not a hook of kbnode; use agent-startup", args[0])
			}
			k, err := strconv.Atoi(os.Getenv("KBNODE_SLOT"))
			if err != nil || k < 0 {
				return term.Usagef("KBNODE_SLOT is not set; run this only in a hook of an agent that kbnode started")
			}
			// If this hook failed, the agent would exit although it can work.
			if err := bootstrap.Report(cmd.Context(), plan.SocketPath(k), slot.RegisteredName); err != nil {
				s.Logger().Warn("registration not noted; status shows the agent as not registered", "slot", plan.SlotName(k), "err", err)
			}
			return nil
		},
	}
}

func newDisk(s term.Streams) *cobra.Command {
	var k int
	cmd := &cobra.Command{
		Use:    "disk",
		Short:  "Make and mount the disk of a slot (started by its socket's unit)",
		Hidden: true,
		RunE:   func(cmd *cobra.Command, _ []string) error { return disk.EnsureSlot(cmd.Context(), k, s.Logger()) },
	}
	slotFlag(cmd, &k)
	return cmd
}

func newDaemon(s term.Streams) *cobra.Command {
	return &cobra.Command{
		Use:    "daemon",
		Short:  "Keep this node in its planned state (run by its service)",
		Hidden: true,
		Long: `Keep this node in its planned state. On SIGHUP, it reads everything again. It never
ends a job, and you can stop it at any time.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return runDaemon(cmd.Context(), s) },
	}
}

func runDaemon(ctx context.Context, s term.Streams) error {
	if err := needRoot(s, "daemon"); err != nil {
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
	m := metrics.New(metrics.Options{
		Root: "/", Version: Version(), Commit: readVersion().Commit, Log: s.Logger(),
		Images: func() (image.State, error) { return image.Read(plan.ImageDir) },
	})
	defer m.Close()
	absent := standin.New(standin.Options{
		Token: func() (string, error) { return agent.ReadToken(plan.TokenPath) }, Log: s.Logger(),
	})
	defer absent.Close()
	log := events.Log{File: events.Path}
	notifier := notify.New(notify.Options{Events: log, Dir: notify.Dir, Log: s.Logger()})
	defer notifier.Close()
	daemon.Run(ctx, daemon.Options{
		Root: "/",
		Node: node.Daemon(Version(), s.Logger()), Events: log, Log: s.Logger(), Wake: wake, Replaced: node.Replaced,
		Publish: func(pass daemon.Snapshot) {
			pass, name, known := node.WithSettings("/", pass)
			m.Publish(pass)
			node.ShowAbsent(absent, pass)
			if known {
				notifier.Configure(name, pass.Notify)
			}
		},
	})
	return nil
}

// limitThreads saves the memory that the runtime keeps for each of hundreds of CPUs.
func limitThreads() { runtime.GOMAXPROCS(min(2, runtime.GOMAXPROCS(0))) }
