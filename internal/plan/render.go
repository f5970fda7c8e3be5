package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"strconv"
	"strings"
	"text/template"

	"github.com/gpu-mode/kbnode/hooks"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/systemd"
)

const header = "# " + Marker + ". Changes are overwritten; edit " + ConfigPath + ".\n"

// AgentCopy is the agent that slots run.
const AgentCopy = "/usr/local/libexec/kbnode/buildkite-agent"

// RunnerCopy is what containers get as kbnode: its commands for jobs, a quarter of its size.
const RunnerCopy = "/usr/local/libexec/kbnode/kbnode-runner"

func (p *Plan) addFile(path string, mode uint32, slot int, content string) {
	p.Files = append(p.Files, File{Path: path, Mode: mode, Owner: "root", Content: content, Slot: slot})
}

func (p *Plan) addJSON(path string, mode uint32, slot int, v any) error {
	text, err := renderJSON(path, v)
	p.addFile(path, mode, slot, text)
	return err
}

func renderJSON(what string, v any) (string, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return "", fmt.Errorf("render %s: %w", what, err)
	}
	return string(text) + "\n", nil
}

// addUnit renders a unit from its template.
func (p *Plan) addUnit(name, tmpl string, slot int, data any) error {
	t, err := template.New(tmpl).Option("missingkey=error").ParseFS(systemd.Templates, tmpl)
	if err != nil {
		return fmt.Errorf("parse unit template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, data); err != nil {
		return fmt.Errorf("render unit %s: %w", name, err)
	}
	p.addFile(UnitDir+"/"+name, 0o644, slot, b.String())
	return nil
}

// addNode adds what belongs to the node and to no slot.
func (b *builder) addNode() error {
	for _, d := range []string{"/etc/kbnode", "/etc/kbnode/slots", "/etc/buildkite-agent", HooksDir, "/var/lib/kbnode", agentsDir, "/usr/local/libexec/kbnode"} {
		b.Dirs = append(b.Dirs, Dir{Path: d, Mode: 0o755, Owner: "root"})
	}
	// Git's user enters its own directories in it, and makes no other.
	b.Dirs = append(b.Dirs, Dir{Path: MirrorsDir, Mode: 0o711, Owner: "root"})
	b.Users = append(b.Users, User{Name: GitUser, Home: "/nonexistent"})
	if b.ConfigText != "" {
		b.addFile(ConfigPath, 0o644, -1, b.ConfigText)
	} else if b.ConfigKept {
		b.Files = append(b.Files, File{Path: ConfigPath, Mode: 0o644, Owner: "root", ModeOnly: true, Slot: -1})
	}
	switch src := b.inv.Software.Agent.Path; {
	case src == "":
	case reflect.DeepEqual(b.Inventory.Software.Agent, b.inv.Software.Agent):
		b.Files = append(b.Files, File{Path: AgentCopy, Mode: 0o711, Owner: "root", Source: src, Slot: -1})
	default: // an agent that does not report its version replaces no other
		b.Files = append(b.Files, File{Path: AgentCopy, Mode: 0o711, Owner: "root", ModeOnly: true, Slot: -1})
	}
	if b.Runner != "" {
		b.Files = append(b.Files, File{Path: RunnerCopy, Mode: 0o755, Owner: "root", SHA256: b.Runner, Slot: -1})
	}
	scripts, err := hooks.Scripts.ReadDir(".")
	if err != nil {
		return fmt.Errorf("list hooks: %w", err)
	}
	for _, e := range scripts {
		text, err := hooks.Scripts.ReadFile(e.Name())
		if err != nil {
			return fmt.Errorf("read hook %s: %w", e.Name(), err)
		}
		b.addFile(HooksDir+"/"+e.Name(), 0o755, -1, string(text))
	}
	data := struct{ Binary, DockerRoot, Reserved, Generation string }{b.Binary, dockerRoot(b.inv), b.Reserved.CPUs, generation(b.Version, b.Binary)}
	b.Units = append(b.Units, Unit{Name: NodeService, Slot: -1, Enabled: true, Active: true, Generation: data.Generation})
	return b.addUnit(NodeService, "kbnode.service.tmpl", -1, data)
}

// plainPath matches what systemd takes as one word, as it is.
var plainPath = lazy.Regexp(`^/[A-Za-z0-9/._-]+$`)

// dockerRoot returns where images are, for units that need its mount; Docker's default if that is unknown or no
// unit can name it.
func dockerRoot(inv *inventory.Inventory) string {
	if dir := inv.Software.Docker.RootDir; plainPath().MatchString(dir) {
		return dir
	}
	return "/var/lib/docker"
}

func (p *Plan) addParent(all cpuset.Set) error {
	// A partition takes its CPUs away from everyone else, so the system needs its own.
	s := Slice{Unit: ParentSlice, Slot: -1, CPUs: all.String(), Partition: p.Reserved.CPUs != "", Devices: []Device{}}
	p.Slices = append(p.Slices, s)
	return p.addUnit(s.Unit, "parent.slice.tmpl", -1, s)
}

// slotUnits is the data of the slot templates.
type slotUnits struct {
	Slot                                  Slot
	Slice                                 Slice
	Binary, AgentBinary                   string
	Dir, Work, Builds, Run, Token, Socket string
	Mirrors                               string
	Disk                                  string // "" without one
	TmpBytes                              int64
	Generation                            string
	CPUQuota                              string
	StopSeconds                           int
}

// afterJob is how many seconds an agent may take besides its job's time limit: for artifacts, which
// bootstrap uploads for up to 30 minutes, hooks, and the removal of the container.
const afterJob = 45 * 60

// mostMinutes is 63 years. systemd ignores a timeout that it cannot count, and kills after 90 seconds.
const mostMinutes = 1 << 25

func (b *builder) addSlot(agent inventory.Agent, s Slot) error {
	k := s.Index
	b.Users = append(b.Users, User{Name: s.User, Home: WorkDir(k)})
	b.Dirs = append(b.Dirs,
		Dir{Path: AgentDir(k), Mode: 0o755, Owner: "root"},
		Dir{Path: WorkDir(k), Mode: WorkMode, Owner: "root:" + s.User},
		Dir{Path: BuildsDir(k), Mode: WorkMode, Owner: "root:" + s.User},
		// The unit of the slot's socket makes what is in it.
		Dir{Path: RunDir(k), Mode: 0o711, Owner: "root"})
	if s.DiskBytes > 0 {
		b.Dirs = append(b.Dirs, Dir{Path: DiskDir(k), Mode: 0o700, Owner: "root"})
	}
	slice := Slice{
		Unit: SliceName(k), Slot: k, CPUs: s.CPUs, MemoryNodes: s.MemoryNodes, MemoryBytes: s.MemoryBytes,
		TasksMax: b.cfg.Job.TasksMax, Devices: sliceDevices(s.Devices()),
	}
	b.Slices = append(b.Slices, slice)

	cfgText, err := renderAgentConfig(agent, agentKeys(b.cfg, s, agent.Version, b.Binary))
	if err != nil {
		return err
	}
	envText := renderEnvironment(s)
	policy, err := b.jobPolicy(s)
	if err != nil {
		return err
	}
	b.addFile(AgentDir(k)+"/buildkite-agent.cfg", 0o644, k, cfgText)
	b.addFile(AgentDir(k)+"/environment", 0o644, k, envText)
	if err := b.addJSON(SlotPolicyPath(k), 0o644, k, policy); err != nil {
		return err
	}
	data := slotUnits{
		Slot: s, Slice: slice, Binary: b.Binary, AgentBinary: AgentBinary(s.AgentVersion),
		Dir: AgentDir(k), Work: WorkDir(k), Builds: BuildsDir(k), Run: RunDir(k), Token: TokenPath, Socket: JobSocket(k), Mirrors: MirrorsDir,
		TmpBytes:    s.MemoryBytes / 4,
		StopSeconds: max((min(b.cfg.Job.MaxMinutes, mostMinutes)+1)*60, int(policy.TimeLimitSeconds)+afterJob),
	}
	if s.DiskBytes > 0 {
		data.Disk = DiskDir(k)
	}
	if b.cfg.Job.CPUQuota {
		set, err := cpuset.Parse(s.CPUs)
		if err != nil {
			return fmt.Errorf("read CPUs of slot %s: %w", s.Name, err)
		}
		data.CPUQuota = strconv.Itoa(set.Len()*100) + "%"
	}
	if err := b.addUnit(slice.Unit, "slot.slice.tmpl", k, data); err != nil {
		return err
	}
	// The generation covers what the agent reads when it starts. A job's process reads everything.
	data.Generation = generation(agent.Version+cfgText+envText+slice.Unit+strconv.Itoa(data.StopSeconds)+strconv.FormatInt(s.DiskBytes, 10), b.Binary)
	b.Units = append(b.Units,
		Unit{Name: JobSocket(k), Slot: k, Active: s.Parked == ""},
		Unit{Name: AgentUnit(k), Slot: k, Active: s.Serves(), Generation: data.Generation})
	return errors.Join(
		b.addUnit(JobSocket(k), "job.socket.tmpl", k, data),
		b.addUnit(JobService(k), "job.service.tmpl", k, data),
		b.addUnit(AgentUnit(k), "agent.service.tmpl", k, data))
}

// generation tells what a process was started with from anything else it may be started with. No one forges
// it, and a cryptographic hash would link 28 packages.
func generation(parts ...string) string {
	h := fnv.New64a()
	_, _ = h.Write([]byte(strings.Join(parts, "\x00")))
	return fmt.Sprintf("%016x", h.Sum64())
}

// renderEnvironment returns what a slot's agent and an operator's hooks start
// with. The values need no quoting in a shell or in systemd.
func renderEnvironment(s Slot) string {
	var b strings.Builder
	b.WriteString(header)
	for _, kv := range slotEnv(s) {
		b.WriteString(kv + "\n")
	}
	return b.String()
}

// slotEnv returns the job environment of the contracts: NAME=value.
func slotEnv(s Slot) []string {
	set, _ := cpuset.Parse(s.CPUs)
	env := []string{
		"KERNELBOT_GPU_INDEX=" + strconv.Itoa(s.Index),
		"KERNELBOT_CPUSET=" + s.CPUs,
		"KERNELBOT_CPUS=" + strconv.Itoa(set.Len()),
		"KERNELBOT_MEMORY=" + strconv.FormatInt(s.MemoryBytes>>20, 10) + "m",
	}
	if s.Vendor() == "amd" {
		// The compute driver hides GPUs whose render node may not be opened from the
		// slot and its containers, so the slot's GPUs are 0 and up. By UUID, ROCm finds
		// no partition if several share the UUID, and on some kernels no GPU at all.
		var indices []string
		for i := range s.GPUs {
			indices = append(indices, strconv.Itoa(i))
		}
		list := strings.Join(indices, ",")
		return append(env, "ROCR_VISIBLE_DEVICES="+list, "HIP_VISIBLE_DEVICES="+list)
	}
	// UUIDs are valid on the host and in a container with only some of the GPUs,
	// where an index of the host may mean no GPU at all.
	var names []string
	for _, g := range s.GPUs {
		if g.Name() != "" {
			names = append(names, g.Name())
		}
	}
	if len(names) == 0 || len(names) < len(s.GPUs) {
		return append(env, "NVIDIA_VISIBLE_DEVICES=void")
	}
	list := strings.Join(names, ",")
	return append(env, "NVIDIA_VISIBLE_DEVICES="+list, "CUDA_VISIBLE_DEVICES="+list)
}

// cdiName returns the CDI name of a GPU, or of a part of one.
func cdiName(g SlotGPU) string { return nvidiaCDI + g.Name() }
