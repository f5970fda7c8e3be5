package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/gpu-mode/kbnode/internal/job/agent"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/doctor"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// InstallOptions are what an installation is asked for.
type InstallOptions struct {
	Config      config.Config       // as the flags say, without defaults
	Env         func(string) string // the environment's variables
	Token       string              // "" to look elsewhere
	AgentBinary string              // "" for the agent that is there, or else a release
	Bundle      *Bundle             // with an agent and an image to use; nil for none
	Packages    bool                // install what is missing
	Adopt       bool                // replace files that kbnode did not write
	Yes         bool                // and do not ask before that
	Ask         bool                // a person answers questions; never with Yes
	DryRun      bool                // change nothing

	Again  string     // what to type to run the installation again
	Moved  string     // likewise, when kbnode is where it should be
	Output io.Writer  // of what installs packages
	API    doctor.API // for the checks at the end
}

// UI shows an installation, and asks a person. What takes time is told to Node.Say instead.
type UI interface {
	Warn(format string, args ...any)

	// Welcome comes before the first question, AskQueue and AskToken. These ask again until take accepts
	// the answer. Every question returns ErrDeclined if the person leaves it, or does not agree.
	Welcome()
	AskQueue(ctx context.Context, take func(answer string) error) error
	AskToken(ctx context.Context, take func(answer string) error) error
	ConfirmPackages(ctx context.Context) error
	Confirm(ctx context.Context, p Proposal) error

	// ShowPlan shows what of the machine the slots take.
	ShowPlan(p *plan.Plan, changes []reconcile.Change)

	// ShowChange, ShowAgents and ShowImage show how far the work is, until EndProgress.
	ShowChange(c reconcile.Change)
	ShowAgents(registered, total int)
	ShowImage(p image.Progress)
	EndProgress()
}

// ErrDeclined ends an installation at a question.
var ErrDeclined = errors.New("nothing was changed")

// Proposal is what a person is asked to agree to.
type Proposal struct {
	Changes   []reconcile.Change
	Adoptions []reconcile.Change // those that replace files of an earlier setup
	Dialog    bool               // questions came before, whose answers make the machine a node
	Flags     []string           // that would have made these questions needless
	TokenFile bool               // one of them names a file, which the person has to write
}

// Report is what an installation did.
type Report struct {
	Plan       *plan.Plan
	Changes    []reconcile.Change // that were to be made; a dry run stops here
	Result     reconcile.Result
	WroteToken bool
	Brings     []string       // what a bundle would change; only of a dry run
	Image      *image.Result  // of a bundle's; nil if there is none
	Health     *doctor.Report // nil if the node was not checked
}

// Install makes this machine a node, or changes the node as asked. A *LateError means that all was done
// but that some agents have not registered yet. Report.Image says what became of a bundle's image also then.
func (n *Node) Install(ctx context.Context, o InstallOptions, ui UI) (Report, error) {
	if err := n.Load(o.Env, o.Config); err != nil {
		return Report{}, err
	}
	if n.Config.Queue == "" && !o.Ask {
		return Report{}, config.BadInput("no queue is given; name the Buildkite queue of these GPUs, such as --queue b200 " +
			"(or set GPU_TYPE); --queue '{shape}' gives each kind of slot its own")
	}
	host, err := n.Open(ctx)
	if err != nil {
		return Report{}, err
	}
	defer host.Close()
	exe, err := os.Executable()
	if err != nil {
		return Report{}, fmt.Errorf("find kbnode's own path: %w", err)
	}
	if err := usableBinary(exe); err != nil && !o.DryRun {
		return Report{}, config.BadInput("%w, then %s", err, o.Moved)
	}
	return n.InstallOn(ctx, host.Host, o, ui)
}

// InstallOn is Install on a machine that is open, with a configuration that is loaded.
func (n *Node) InstallOn(ctx context.Context, host *reconcile.Host, o InstallOptions, ui UI) (Report, error) {
	host.Adopt = o.Adopt
	i := &installation{InstallOptions: o, n: n, host: host, ui: ui}
	defer i.unlock()
	// Everything that can be refused is refused before anything is written.
	err := inOrder(ctx, i.ask, i.checkBundle, i.lock, i.load, i.read, i.addPackages, i.checkMachine, i.checkRoom, i.makePlan, i.checkEndpoint, i.checkToken, i.compare, i.bundleChanges)
	if err == nil && !o.DryRun {
		err = inOrder(ctx, i.confirm, i.addAgent, i.holdSlots, i.write, i.awaitAgentsAndImage, i.checkNode)
	}
	i.Plan = n.Plan
	return i.Report, err
}

func inOrder(ctx context.Context, steps ...func(context.Context) error) error {
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return nil
}

// installation is an Install under way.
type installation struct {
	InstallOptions
	Report

	n       *Node
	host    *reconcile.Host
	ui      UI
	state   *reconcile.State // that Changes are of
	release func()           // the lock; nil if it is not held

	dialog       bool     // a person was asked
	flags        []string // that would have made the questions needless
	tokenChecked bool     // Buildkite was asked about the token
	newPackages  bool     // packages were installed
	noImage      bool     // jobs have none yet
	newNode      bool     // there were no slots
	held         bool     // slots take no jobs until there is an image
}

func (i *installation) lock(ctx context.Context) (err error) {
	i.release, err = i.n.Lock(ctx, i.host)
	return err
}

func (i *installation) unlock() {
	if i.release != nil {
		i.release()
	}
	i.release = nil
}

// load loads the configuration: again with the lock, because the kbnode that held it may have written another one.
func (i *installation) load(context.Context) error { return i.n.Load(i.Env, i.Config) }

func (i *installation) read(ctx context.Context) error {
	i.n.say("reading the machine")
	return i.n.Read(ctx)
}

// makePlan plans the machine as it was read, with slots of what exists now.
func (i *installation) makePlan(context.Context) error {
	if (i.AgentBinary != "" || i.Bundle != nil) && i.n.Inventory.WhyUnread(inventory.SubjectAgent) != "" {
		i.n.Inventory.Software.Agent = inventory.Agent{} // it is replaced
	}
	i.n.Reshape = true
	return i.n.MakePlan()
}

// addPackages installs missing packages, if asked for.
func (i *installation) addPackages(ctx context.Context) error {
	if !i.Packages {
		return nil
	}
	steps, err := installer.Packages(i.n.Inventory, installer.Manager())
	if err != nil || len(steps) == 0 {
		return err
	}
	for _, step := range steps {
		i.n.say("%s: %s", step.Why, step)
	}
	if i.DryRun {
		return nil
	}
	if i.dialog {
		if err := i.ui.ConfirmPackages(ctx); err != nil {
			return err
		}
	}
	i.newPackages = true
	if err := installer.Run(ctx, steps, i.Output); err != nil {
		return err
	}
	silent := i.n.Inventory.Software.Docker.Version == ""
	if err := i.n.Read(ctx); err != nil || !silent || i.n.Inventory.Software.Docker.Version == "" {
		return err
	}
	return i.addPackages(ctx) // Docker says now what it lacks
}

// checkMachine refuses a machine that lacks something, or that can never be a node.
func (i *installation) checkMachine(context.Context) error {
	missing := i.n.lacks()
	if len(missing) == 0 {
		return nil
	}
	err := errors.New(strings.Join(missing, "\n"))
	if len(installer.Unfit(i.n.Inventory)) > 0 {
		return &config.InputError{Err: err}
	}
	return err
}

// checkEndpoint refuses a bundle whose agent connects to what the slots' agents until now did not, and a firewall refuses.
func (i *installation) checkEndpoint(ctx context.Context) error {
	if i.Bundle == nil || i.newNode { // agents of a new node keep trying
		return nil
	}
	return i.n.askEndpoint(ctx, i.Bundle.Agent.Version)
}

// endpoint returns where the agents will connect to.
func (i *installation) endpoint() string {
	if i.Bundle != nil {
		return plan.AgentEndpoint(i.n.Config.Agent.Endpoint, i.Bundle.Agent.Version)
	}
	return i.n.AgentEndpoint()
}

// checkToken finds the token, and refuses one that cannot be written or that Buildkite refuses.
func (i *installation) checkToken(ctx context.Context) (err error) {
	i.Token, err = i.findToken()
	if err != nil {
		return err
	}
	if i.Token == "" {
		i.ui.Warn("%v", errNoToken)
		return nil
	}
	if err := mayWriteToken(i.host, i.Token); err != nil {
		return &config.InputError{Err: err}
	}
	if i.tokenChecked {
		return nil
	}
	i.n.say("checking the token with Buildkite")
	err = agent.CheckToken(ctx, i.endpoint(), i.Token)
	if errors.Is(err, agent.ErrTokenRefused) {
		return &config.InputError{Err: err}
	}
	if err != nil {
		i.ui.Warn("%v; continuing, because the agents will keep trying", err)
	}
	return nil
}

// findToken returns the agent token that slots will have. A dry run needs none: it is then "".
func (i *installation) findToken() (string, error) {
	if i.Token != "" {
		return i.Token, nil
	}
	token, err := findToken(i.n.Root, i.Env, i.Adopt)
	if i.DryRun && errors.Is(err, errNoToken) {
		return "", nil
	}
	if errors.Is(err, agent.ErrMalformed) { // one that is not there yet may come
		return "", &config.InputError{Err: err}
	}
	return token, err
}

func (i *installation) compare(ctx context.Context) (err error) {
	i.state, i.Changes, err = i.n.Compare(ctx, i.host)
	if err == nil {
		i.ui.ShowPlan(i.n.Plan, i.Changes)
	}
	return err
}

// addAgent makes sure that there is a buildkite-agent, and plans with it.
func (i *installation) addAgent(ctx context.Context) error {
	binary := i.AgentBinary
	if i.Bundle != nil && (i.n.Inventory.Software.Agent.Path == "" || i.n.agentVersion() != i.Bundle.Agent.Version) {
		program, remove, err := i.n.UnpackAgent(ctx, i.Bundle)
		if err != nil {
			return err
		}
		defer remove()
		binary = program
	}
	fetched, err := i.n.installAgent(ctx, i.host, binary)
	if err == nil && fetched {
		i.state, i.Changes, err = i.n.Compare(ctx, i.host)
	}
	return err
}

// write writes the token, and makes the changes.
func (i *installation) write(ctx context.Context) (err error) {
	if i.WroteToken, err = WriteToken(i.host, i.Token); err != nil {
		return err
	}
	i.host.Log, i.host.Progress = nil, i.ui.ShowChange
	i.Result, err = i.host.Apply(ctx, i.n.Plan, i.state, i.Changes)
	i.ui.EndProgress()
	for _, w := range i.Result.Warnings {
		i.ui.Warn("%s", w)
	}
	if applied := len(i.Result.Applied); err != nil {
		err = fmt.Errorf("%w\neverything else was changed (%d %s); fix this and type %s to continue",
			err, applied, text.Plural(applied, "change", "changes"), i.Again)
	}
	return err
}

func (i *installation) awaitAgents(ctx context.Context) error {
	defer i.ui.EndProgress()
	parked := func(s plan.Slot, reason string) {
		i.ui.EndProgress()
		i.ui.Warn("slot %s is parked: %s", s.Name, reason)
	}
	return WaitRegistered(ctx, i.n.Plan, i.host, i.Result.Deferred, slot.RegisterTime, i.ui.ShowAgents, parked)
}

// awaitAgentsAndImage adds a bundle's image also if an agent does not come: jobs of the other slots need it.
func (i *installation) awaitAgentsAndImage(ctx context.Context) error {
	late := i.awaitAgents(ctx)
	if late != nil && (i.Bundle == nil || ctx.Err() != nil) {
		return late
	}
	err := i.addImage(ctx)
	if err != nil && late != nil {
		i.ui.Warn("%v", late)
		return err
	}
	return cmp.Or(err, late)
}

// checkNode checks the node of a person, who may not know of doctor.
func (i *installation) checkNode(ctx context.Context) (err error) {
	if !i.dialog {
		return nil
	}
	i.unlock()
	i.n.say("checking the node")
	again := &Node{Root: i.n.Root, Version: i.n.Version, Log: i.n.Log, Say: i.n.Say}
	if i.Health, _, err = again.Doctor(ctx, doctor.Options{Fast: true}, i.API); err != nil {
		i.ui.Warn("%v; type sudo kbnode doctor to check the node", err)
	}
	return nil
}
