// Package node is this machine down the pipe: configured, read, planned, observed and changed, by
// one kbnode at a time.
package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/evaluate/runner/program"
	"github.com/gpu-mode/kbnode/internal/machine/detect"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
)

// Binary is kbnode's path in the units of a tree that is not this machine.
const Binary = "/usr/local/bin/kbnode"

// ErrNone means that this machine is not set up as a node.
var ErrNone = image.ErrNoNode

// Node is a machine with what has been read and planned of it so far.
type Node struct {
	Root     string // "/", or a tree
	Name     string // of the root, in messages; "" means Root itself
	Recorded bool   // the root was unpacked from the file Name: of what is not in it, nothing is known
	Version  string // of this kbnode
	Log      *slog.Logger
	Say      func(format string, args ...any) // what people wait for; nil says nothing
	Asked    *ConfigText                      // a configuration to use instead of the machine's
	Reshape  bool                             // make slots of the instances and partitions that exist now
	Others   *[]plan.Drain                    // to plan with instead of Drains

	Config    config.Config // with defaults
	Inventory *inventory.Inventory
	Drains    []plan.Drain      // as stored
	Agent     plan.AgentRelease // as stored
	Plan      *plan.Plan
	Notes     []string // about variables of the old scripts, and files of kbnode's state that cannot be read

	written config.Config // without defaults
	absent  bool          // there is no configuration file
	managed bool          // the configuration file is kbnode's own, or there is none
	rewrite bool          // the file is missing, or lacks something that was asked for

	openImages func() (*image.Updater, func(), error) // instead of this machine's engine, in tests
	heldWait   time.Duration                          // instead of heldWait, in tests
}

// Live reports whether this is the machine that kbnode runs on.
func (n *Node) Live() bool { return n.Root == "/" }

func (n *Node) say(format string, args ...any) {
	if n.Say != nil {
		n.Say(format, args...)
	}
}

// open opens a file of the machine. Below any root but "/", links cannot lead out of the tree.
func (n *Node) open(path string) (*os.File, error) {
	if n.Live() {
		return os.Open(path)
	}
	return os.OpenInRoot(n.Root, strings.TrimPrefix(path, "/"))
}

// MaxInput is the maximum size of a file that the plan is made from, in bytes.
const MaxInput = 4 << 20

// ReadFile returns a file of the machine, at most 4 MiB of it.
func (n *Node) ReadFile(path string) ([]byte, error) {
	f, err := n.open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, MaxInput))
}

// Read reads the machine. The configuration must be loaded.
func (n *Node) Read(ctx context.Context) error {
	agentPath := n.Config.Agent.Binary
	if agentPath == "" {
		f, err := n.open(installer.AgentPath)
		if err == nil {
			_ = f.Close()
		}
		if !errors.Is(err, fs.ErrNotExist) { // also if it cannot be read: it is still the agent to ask
			agentPath = installer.AgentPath
		}
	}
	inv, err := detect.Read(ctx, detect.Options{
		Root: n.Root, AgentPath: agentPath, DockerSocket: n.Config.Docker.Socket, Log: n.Log,
	})
	if err != nil && n.Recorded { // people know the file, not where it was unpacked
		return errors.New(strings.ReplaceAll(err.Error(), n.Root, n.Name))
	}
	if err != nil {
		return err
	}
	n.Inventory = inv
	return nil
}

// stored passes a file of kbnode's state to parse, unless there is none.
func (n *Node) stored(path, what string, parse func([]byte) error) error {
	text, err := n.ReadFile(path)
	switch {
	case err == nil:
		return parse(text)
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("read %s: %w", what, err)
	}
	return nil
}

// bindings returns the stored bindings of slots, empty on a new machine, and the last inventory. Without that one a
// node can be planned if all can be read, so a note says what is wrong with it, and the next change writes it again.
func (n *Node) bindings() (*plan.Bindings, error) {
	all, last := &plan.Bindings{}, (*inventory.Inventory)(nil)
	err := n.stored(plan.LastPath, "the last inventory", func(text []byte) (err error) { last, err = plan.ParseLast(text); return err })
	n.note(err)
	err = n.stored(plan.BindingsPath, "slot bindings", func(text []byte) (err error) { all, err = plan.ParseBindings(text); return err })
	if err != nil {
		return nil, err
	}
	all.Last = last
	return all, nil
}

// missing returns what keeps the node from being planned again. What cannot be read now counts as it
// was last planned.
func (n *Node) missing() ([]string, error) {
	bindings, err := n.bindings()
	if err != nil {
		return nil, err
	}
	inv, err := plan.Recall(n.Inventory, bindings)
	if err != nil {
		return nil, err
	}
	return installer.Missing(inv), nil
}

// lacks returns what keeps the machine from being made a node as it is configured. Without slots of GPUs, no container
// gets one.
func (n *Node) lacks() []string {
	if n.Config.GPUs.None {
		return installer.Missing(n.Inventory)
	}
	return installer.Preflight(n.Inventory)
}

// image returns the ID of the image that jobs get; "" if it is not known. Then agents lack a tag, so a note says what is wrong.
func (n *Node) image() (id string) {
	if !n.Config.Image.Updates() {
		return ""
	}
	err := n.stored(plan.ImagesPath, "images", func(text []byte) (err error) { id, err = image.StandsFor(text, n.Config.Image.Name); return err })
	n.note(err)
	return id
}

// note adds an error to the notes, once.
func (n *Node) note(err error) {
	if err != nil && !slices.Contains(n.Notes, err.Error()) {
		n.Notes = append(n.Notes, err.Error())
	}
}

// MakePlan plans the machine as it was read, with the stored drains and agents.
func (n *Node) MakePlan() error {
	bindings, err := n.bindings()
	if err != nil {
		return err
	}
	n.Drains, n.Agent = nil, plan.AgentRelease{}
	if err := n.stored(plan.DrainsPath, "drained slots", func(text []byte) (err error) { n.Drains, err = plan.ParseDrains(text); return err }); err != nil {
		return err
	}
	if err := n.stored(plan.AgentsPath, "agents", func(text []byte) (err error) { n.Agent, err = plan.ParseAgent(text); return err }); err != nil {
		return err
	}
	if n.Others != nil {
		n.Drains = *n.Others
	}
	in := plan.Input{Inventory: n.Inventory, Config: &n.Config, Bindings: bindings, Drains: n.Drains, Agent: n.Agent, Binary: Binary, Version: n.Version, Image: n.image(), Reshape: n.Reshape}
	if n.Live() {
		if in.Binary, err = os.Executable(); err != nil {
			return fmt.Errorf("find kbnode's own path: %w", err)
		}
		in.Runner = program.Digest()
	}
	in.ConfigKept = n.managed && !n.rewrite
	if n.managed && n.rewrite {
		if in.ConfigText, err = config.Render(n.written, plan.Marker+". kbnode install writes its flags here; to manage the file yourself, edit it and delete this line."); err != nil {
			return err
		}
	}
	p, err := plan.Build(in)
	if err == nil {
		p, err = n.withLoan(in, p)
	}
	if err != nil {
		return err
	}
	p.Warnings = append(append(append([]string{}, n.Notes...), p.Warnings...), n.HookWarnings()...)
	n.Plan = p
	return nil
}

// Refresh loads, reads and plans this machine, which must be a node. It fails if anything is
// missing: that may be back in a moment, and a plan without it would remove what running jobs
// need.
func (n *Node) Refresh(ctx context.Context) error {
	if err := n.load(ctx); err != nil {
		return err
	}
	missing, err := n.missing()
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		return fmt.Errorf("nothing was changed: %s", strings.Join(missing, "\n"))
	}
	return n.MakePlan()
}

// Inspect is Refresh for those who change nothing: it plans whatever is there.
func (n *Node) Inspect(ctx context.Context) error {
	if err := n.load(ctx); err != nil {
		return err
	}
	return n.MakePlan()
}

func (n *Node) load(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(n.Root, plan.BindingsPath)); errors.Is(err, fs.ErrNotExist) {
		return ErrNone
	}
	if err := n.LoadStored(); err != nil {
		return err
	}
	// The defaults could be another queue and another profile than those that jobs have now.
	if n.absent {
		return fmt.Errorf("%s is missing, so nothing was planned; put it back, or run sudo kbnode install with the flags of this node", plan.ConfigPath)
	}
	return n.Read(ctx)
}
