package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/agent"
	"github.com/gpu-mode/kbnode/internal/installer"
	"github.com/gpu-mode/kbnode/internal/inventory"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/reconcile"
)

type installFlags struct {
	wishes
	tokenFile, agentBinary          string
	dryRun, yes, adopt, installDeps bool
}

func newInstall(s Streams) *cobra.Command {
	var f installFlags
	cmd := &cobra.Command{
		Use:   "install --queue NAME",
		Short: "Make this machine a node: one Buildkite agent for each GPU",
		Long: `Make this machine a node: one Buildkite agent for each GPU, with its share of
CPUs and memory. Run it again to change or repair the node: what is already correct
is left alone, and a slot that runs a job changes when the job is done.

The agent token comes from --token-file, BUILDKITE_AGENT_TOKEN, or the token file
of an earlier install (` + plan.TokenPath + `). GPU_TYPE, NODE_NAME, GPU_COUNT,
CPUS_PER_GPU and RAM_PER_GPU are read from the environment, as the old setup
scripts did.`,
		Example: `  sudo kbnode install --queue b200 --token-file token.txt
  sudo BUILDKITE_AGENT_TOKEN=… kbnode install --queue 'nvidia-h100-{index}'
  sudo kbnode install --queue b200 --gpus 0,2,5 --dry-run`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return install(cmd.Context(), s, &f) },
	}
	f.register(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.tokenFile, "token-file", "", "file with the Buildkite agent token")
	fl.StringVar(&f.agentBinary, "agent-binary", "", "buildkite-agent to use, for machines without internet")
	fl.BoolVar(&f.installDeps, "install-deps", false, "install missing packages (Docker, git, e2fsprogs, container toolkit) with apt or dnf")
	fl.BoolVar(&f.adopt, "adopt", false, "replace files of an earlier setup that kbnode did not write, keeping backups")
	fl.BoolVar(&f.dryRun, "dry-run", false, "show what would change, and change nothing")
	fl.BoolVarP(&f.yes, "yes", "y", false, "do not ask before replacing files with --adopt")
	return cmd
}

func install(ctx context.Context, s Streams, f *installFlags) error {
	if err := needRoot("install"); err != nil {
		if !f.dryRun {
			return err
		}
		return tryInstall(ctx, s, f)
	}
	m := &machine{root: "/"}
	if err := m.loadConfig(&f.wishes, os.Getenv); err != nil {
		return err
	}
	if m.cfg.Queue == "" {
		return usagef("no queue is given; name the Buildkite queue of these GPUs, such as --queue b200 (or set GPU_TYPE); --queue '{shape}' gives each kind of slot its own")
	}
	host, closeHost, err := openHost(ctx, s)
	if err != nil {
		return err
	}
	defer closeHost()
	host.Adopt = f.adopt
	release, err := lock(ctx, s, host)
	if err != nil {
		return err
	}
	defer func() { release() }()
	// Again: the kbnode that held the lock may have written other wishes.
	if err := m.loadConfig(&f.wishes, os.Getenv); err != nil {
		return err
	}

	s.progress("reading the machine")
	if err := m.read(ctx, s.logger()); err != nil {
		return err
	}
	if err := installPackages(ctx, s, m, f); err != nil {
		return err
	}
	if missing := installer.Preflight(m.inv); len(missing) > 0 {
		return errors.New(strings.Join(missing, "\n"))
	}
	if f.agentBinary != "" && m.inv.WhyUnread(inventory.SubjectAgent) != "" {
		m.inv.Software.Agent = inventory.Agent{} // --agent-binary replaces it
	}
	// Refuse everything that can be refused before writing anything.
	m.reshape = true
	if err := m.think(); err != nil {
		return err
	}
	if exe, err := os.Executable(); err != nil {
		return fmt.Errorf("find kbnode's own path: %w", err)
	} else if err := usableBinary(exe); err != nil && !f.dryRun {
		return err
	}
	token, err := findToken("/", os.Getenv, f)
	if err != nil {
		return err
	}
	if err := mayWriteToken(host, token); err != nil {
		return err
	}
	s.progress("checking the token with Buildkite")
	endpoint := m.cfg.WithDefaults().Agent.Endpoint
	if err := agent.CheckToken(ctx, endpoint, token); errors.Is(err, agent.ErrTokenRefused) {
		return err
	} else if err != nil {
		s.warn("%v; continuing, because the agents will keep trying", err)
	}
	host.GPUs = m.inv.GPUs
	state, err := host.Observe(ctx, m.plan)
	if err != nil {
		return err
	}
	changes := reconcile.Diff(m.plan, state)
	printf(s.Err, "\n")
	printSlots(s.Err, m.plan)
	printFates(s.Err, m.plan, changes)
	printf(s.Err, "\n")
	for _, warning := range m.plan.Warnings {
		s.warn("%s", warning)
	}
	if f.dryRun {
		printChanges(s.Out, changes)
		printf(s.Out, "%s would be made; nothing was changed\n", changeCount(len(changes)))
		return nil
	}
	agreed := reconcile.Conflicts(changes)
	asks := f.adopt && !f.yes && len(agreed) > 0
	if asks { // the daemon and other commands do not wait for a person
		release()
		release = func() {}
	}
	if err := confirmAdopt(s, f, changes); err != nil {
		return err
	}
	if asks {
		held, err := lock(ctx, s, host)
		if err != nil {
			return err
		}
		release = held
		if state, changes, err = lookAgain(ctx, s, m, host, f, agreed); err != nil {
			return err
		}
	}
	if fetched, err := installAgent(ctx, s, m, host, f); err != nil {
		return err
	} else if fetched {
		if state, err = host.Observe(ctx, m.plan); err != nil {
			return err
		}
		changes = reconcile.Diff(m.plan, state)
	}
	return applyInstall(ctx, s, m, host, state, changes, token)
}

func applyInstall(ctx context.Context, s Streams, m *machine, host *reconcile.Host, state *reconcile.State, changes []reconcile.Change, token string) error {
	wrote, err := writeToken(host, token)
	if err != nil {
		return err
	}
	end := showProgress(s, host)
	result, err := host.Apply(ctx, m.plan, state, changes)
	end()
	if err != nil {
		return fmt.Errorf("%w\neverything else was changed (%s); fix this and run kbnode install again to continue", err, changeCount(len(result.Applied)))
	}
	if err := waitRegistered(ctx, s, m.plan, host, result.Deferred); err != nil {
		return err
	}
	printf(s.Err, "\n")
	return nextSteps(s, m.plan, result, wrote)
}

// usableBinary refuses to write units that start a kbnode that others could replace, or that may
// soon be gone.
func usableBinary(exe string) error {
	for dir := exe; ; dir = filepath.Dir(dir) {
		fi, err := os.Stat(dir)
		if err != nil {
			return fmt.Errorf("check kbnode's own path: %w", err)
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if temporary := slices.Contains([]string{"/tmp", "/var/tmp", "/home", "/root", "/run", "/dev/shm"}, dir); !ok || st.Uid != 0 || fi.Mode().Perm()&0o022 != 0 || temporary {
			return fmt.Errorf("kbnode runs from %s, but units need a permanent path that only root can change; type sudo install -m 755 %s %s, then sudo kbnode install again", exe, exe, unitBinary)
		}
		if dir == "/" {
			return nil
		}
	}
}

// findToken returns the token of --token-file, or else of the environment, of an earlier
// install, or of what --adopt takes over, in this order.
func findToken(root string, env func(string) string, f *installFlags) (string, error) {
	if f.tokenFile != "" {
		return agent.ReadToken(f.tokenFile)
	}
	if v := env("BUILDKITE_AGENT_TOKEN"); v != "" {
		return agent.ParseToken([]byte(v))
	}
	token, err := agent.ReadToken(filepath.Join(root, plan.TokenPath))
	if err == nil || !errors.Is(err, fs.ErrNotExist) {
		return token, err
	}
	if f.adopt {
		old, _ := filepath.Glob(filepath.Join(root, "/etc/buildkite-agent/buildkite-agent*.cfg"))
		older, _ := filepath.Glob(filepath.Join(root, "/etc/buildkite-agent/agent-*/buildkite-agent.cfg"))
		for _, file := range append(old, older...) {
			if token, err := agent.ReadToken(file); err == nil {
				return token, nil
			}
		}
	}
	return "", usagef("no agent token is given; write the token from Buildkite (Agents, Agent Tokens) to a file and add --token-file FILE, or set BUILDKITE_AGENT_TOKEN")
}

func installPackages(ctx context.Context, s Streams, m *machine, f *installFlags) error {
	if !f.installDeps {
		return nil
	}
	steps, err := installer.Packages(m.inv, installer.Manager())
	if err != nil || len(steps) == 0 {
		return err
	}
	for _, step := range steps {
		s.progress("%s: %s", step.Why, step)
	}
	if f.dryRun {
		return nil
	}
	if err := installer.Run(ctx, steps, s.Err); err != nil {
		return err
	}
	return m.read(ctx, s.logger())
}

// installAgent makes sure that there is a buildkite-agent. If it installed one, it reads and
// plans the machine again with what that agent understands.
func installAgent(ctx context.Context, s Streams, m *machine, host *reconcile.Host, f *installFlags) (fetched bool, err error) {
	switch {
	case f.agentBinary != "":
		err = installer.CopyAgent("/", f.agentBinary)
		if v := m.agents; err == nil && (v.Version != "" || v.Roll != nil) {
			s.progress("slots run this agent, not the one that kbnode upgrade chose")
			err = host.WriteAgents(plan.Agents{Releases: v.Releases}) // the daemon removes them
		}
	case m.inv.Software.Agent.Path != "":
		return false, nil
	default:
		s.progress("fetching buildkite-agent %s", plan.PinnedAgentVersion)
		err = installer.Agent(ctx, "/", installer.AgentRelease{
			Version: plan.PinnedAgentVersion, Arch: runtime.GOARCH,
			URL: m.cfg.Agent.DownloadURL, SHA256: m.cfg.Agent.DownloadSHA256,
		})
	}
	if err == nil {
		err = m.read(ctx, s.logger())
	}
	if err != nil {
		return false, err
	}
	if m.inv.Software.Agent.Version == "" {
		return false, fmt.Errorf("%s does not report its version; give a buildkite-agent for this machine (%s) with --agent-binary", installer.AgentPath, runtime.GOARCH)
	}
	return true, m.think()
}

// writeToken writes the token where the agents' units read it. It keeps an operator's token file
// that has the same token.
func writeToken(host *reconcile.Host, token string) (wrote bool, err error) {
	if err := mayWriteToken(host, token); err != nil {
		return false, err
	}
	file := filepath.Join(host.Root, plan.TokenPath)
	if have, err := agent.ReadToken(file); err != nil || have != token {
		return true, host.WriteInput(plan.TokenPath, agent.RenderToken(token))
	}
	if err := os.Chmod(file, 0o600); err != nil {
		return false, fmt.Errorf("close token file: %w", err)
	}
	return false, nil
}

// mayWriteToken refuses to replace an operator's token file that has another token.
func mayWriteToken(host *reconcile.Host, token string) error {
	text, err := os.ReadFile(filepath.Join(host.Root, plan.TokenPath))
	if errors.Is(err, fs.ErrNotExist) || host.Adopt || strings.Contains(firstLines(string(text), 3), plan.Marker) {
		return nil
	}
	if have, err := agent.ParseToken(text); err == nil && have == token {
		return nil
	}
	return fmt.Errorf("%s contains a different token and was not written by kbnode; delete it, or use --adopt to replace it", plan.TokenPath)
}

// fewChanges is how many changes are worth a line each.
const fewChanges = 12

// nextSteps prints what was done and what is left to do by hand.
func nextSteps(s Streams, p *plan.Plan, result reconcile.Result, wroteToken bool) error {
	var queues []string
	running := 0
	for _, slot := range p.Slots {
		if !slices.Contains(queues, slot.Queue) {
			queues = append(queues, slot.Queue)
		}
		if slot.Serves() {
			running++
		}
	}
	w := s.Out
	if len(result.Applied) == 0 && !wroteToken {
		printf(w, "Nothing to change: node %s has %d slots.\n", p.Node, len(p.Slots))
	} else {
		printf(w, "Node %s has %d slots, %d with an agent; %s made.\n", p.Node, len(p.Slots), running, changesWere(len(result.Applied)))
	}
	if len(result.Applied) <= fewChanges {
		for _, c := range result.Applied {
			printf(w, "  %s\n", c)
		}
	}
	printLater(w, result.Deferred)
	printf(w, `
Next:
  The agents serve %s %s. In Buildkite, under Agents and Queues of the
  cluster, %s must exist as self-hosted, or no job is sent.
  sudo kbnode status      shows the slots
  sudo kbnode uninstall   restores the machine
`, plural(len(queues), "queue", "queues"), strings.Join(queues, ", "), cmp.Or(map[bool]string{true: "it"}[len(queues) == 1], "they"))
	return nil
}

func changeCount(n int) string { return fmt.Sprintf("%d %s", n, plural(n, "change", "changes")) }

func changesWere(n int) string { return changeCount(n) + plural(n, " was", " were") }

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}
