package guard

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// slotLabel marks the containers of a slot. Only the guard can set it on a container below the
// slot's slice, and it trusts no other container.
const slotLabel = "kbnode.slot"

// profileLabel names the job profile that a container was created with.
const profileLabel = "kbnode.profile"

// jobLabels is the prefix of the labels that a job may set: the agent's hooks find their
// containers by them.
const jobLabels = "com.buildkite."

// Limits on what a job may choose.
const (
	maxFiles       = 1 << 20 // open files
	maxMounts      = 64      // including tmpfs
	maxStopSeconds = 60
)

// bounds limits what the fields of a request may hold, in values and bytes; usual applies to all
// others. The engine keeps all of it in memory as long as the container exists. The kernel has
// room for 2 MiB of environment and arguments together.
var (
	usual  = room{512, 64 << 10}
	bounds = map[string]room{
		"Env": {4096, 2 << 20}, "Cmd": {4096, 256 << 10}, "Entrypoint": {4096, 256 << 10}, "Labels": {128, 16 << 10},
	}
)

var (
	hostnameForm = lazily(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,62})$`)
	userForm     = lazily(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$`)
	groupForm    = lazily(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}$`)
	signalForm   = lazily(`^[A-Za-z0-9+-]{1,16}$`)
	pathForm     = lazily(`^/`)
	capForm      = lazily(`^[A-Za-z_]{1,40}$`)
	// imageForm accepts names, tags, digests and IDs. No component starts with a dot, so an
	// image cannot traverse the engine's paths.
	imageForm = lazily(`^[A-Za-z0-9][A-Za-z0-9._:-]*(/[A-Za-z0-9_][A-Za-z0-9._:-]*)*(@sha256:[a-f0-9]{64})?$`)
)

// facts are what a new request depends on besides the policy and the job's request. Functions
// read the machine, so that tests need none.
type facts struct {
	// resolve returns the real path of a file or directory below the work root; its error is a
	// sentence.
	resolve func(path string) (string, error)
	gids    func(nodes []string) []string // the groups that own these device nodes, numeric
	named   []string                      // the node's groups video and render, numeric
	present func(nodes []string) []string // those of these device nodes that exist
	user    string                        // the slot's user, "UID:GID"
}

// rebuild makes the container-create request that the engine gets from a job's. It starts empty:
// the policy fills it, and only what a rule accepts is added. The error is a sentence for the
// job's log.
func rebuild(p plan.JobPolicy, f facts, body []byte) (*container.CreateRequest, error) {
	obj, err := parse(body)
	if err != nil {
		return nil, err
	}
	b := &builder{policy: p, facts: f}
	b.conf.Labels = map[string]string{}
	b.memory, b.pids, b.shm = p.MemoryBytes, p.PidsLimit, p.ShmBytes
	// A variable in the same request names the agent's job API socket.
	b.jobAPI = jobAPISocket(obj["Env"])
	if err := judge(obj, b.configRules()); err != nil {
		return nil, err
	}
	if b.conf.Image == "" {
		return nil, errors.New("a container needs an Image; write its name")
	}
	if err := allowImage(p, b.conf.Image); err != nil {
		return nil, err
	}
	return b.request()
}

type builder struct {
	policy plan.JobPolicy
	facts  facts
	jobAPI string

	conf              container.Config
	host              container.HostConfig
	memory, pids, shm int64
	init              bool
	mounts            []mount.Mount
	env               []string
}

func (b *builder) configRules() map[string]rule {
	c := &b.conf
	return bounded(map[string]rule{
		"Image":        takeString(&c.Image, imageForm, config.DefaultImage),
		"Cmd":          takeStrings(&c.Cmd),
		"Entrypoint":   takeStrings(&c.Entrypoint),
		"WorkingDir":   b.takeDir,
		"Env":          b.takeEnv,
		"Labels":       b.takeLabels,
		"User":         b.takeUser,
		"Hostname":     takeString(&c.Hostname, hostnameForm, "runner"),
		"StopSignal":   takeString(&c.StopSignal, signalForm, "SIGTERM"),
		"StopTimeout":  b.takeStopTimeout,
		"Tty":          takeBool(&c.Tty),
		"OpenStdin":    takeBool(&c.OpenStdin),
		"StdinOnce":    takeBool(&c.StdinOnce),
		"AttachStdin":  takeBool(&c.AttachStdin),
		"AttachStdout": takeBool(&c.AttachStdout),
		"AttachStderr": takeBool(&c.AttachStderr),
		"ExposedPorts": ignore, // has no effect as long as no port is published
		"Volumes":      never("a job cannot have volumes; mount a directory of the checkout or a tmpfs"),
		"Healthcheck":  healthcheck,
		"NetworkingConfig": func(v any) error {
			return judge(v, map[string]rule{"EndpointsConfig": endpoints})
		},
	}, map[string]rule{
		"HostConfig": func(v any) error { return judge(v, bounded(b.hostRules(), nil)) },
	})
}

func (b *builder) hostRules() map[string]rule {
	h := &b.host
	const (
		namespace = "a job cannot share a namespace; leave it out"
		ports     = "a job cannot publish ports; leave it out"
	)
	return map[string]rule{
		// What a job may choose, or lower.
		"AutoRemove":     takeBool(&h.AutoRemove),
		"ReadonlyRootfs": takeBool(&h.ReadonlyRootfs),
		"Init":           takeBool(&b.init),
		"Memory":         atMost(&b.memory),
		"PidsLimit":      atMost(&b.pids),
		"ShmSize":        atMost(&b.shm),
		"Ulimits":        b.takeUlimits,
		"CapDrop":        b.takeCapDrop,
		"GroupAdd":       b.takeGroups,
		"Binds":          b.takeBinds,
		"Mounts":         b.takeMounts,
		"Tmpfs":          b.takeTmpfs,
		"NetworkMode":    b.takeNetwork,

		// What the slot decides, whatever was requested.
		"CgroupParent": ignore, "CpusetCpus": ignore, "CpusetMems": ignore,
		"NanoCpus": ignore, "CpuShares": ignore, "CpuPeriod": ignore, "CpuQuota": ignore,
		"CpuRealtimePeriod": ignore, "CpuRealtimeRuntime": ignore,
		"MemoryReservation": ignore, "MemorySwap": ignore, "MemorySwappiness": ignore,
		"OomScoreAdj": ignore, "BlkioWeight": ignore,
		"Devices": ignore, "DeviceRequests": ignore, "Runtime": ignore,
		"LogConfig": ignore, "RestartPolicy": ignore, "ContainerIDFile": ignore, "ConsoleSize": ignore,
		"MaskedPaths": ignore, "ReadonlyPaths": ignore, // the engine's own lists stay

		// What no job gets.
		"Privileged":        never("a job's container cannot be privileged; leave it out"),
		"CapAdd":            never("a job cannot add capabilities; leave it out"),
		"SecurityOpt":       securityOpt,
		"DeviceCgroupRules": never("a job can open only its own GPU; leave it out"),
		"VolumesFrom":       never("a job cannot mount volumes of other containers; mount a directory of the checkout instead"),
		"VolumeDriver":      oneOf("a job cannot have volumes; leave it out, and mount a directory of the checkout or a tmpfs", "local"),
		"PidMode":           never(namespace),
		"UTSMode":           never(namespace),
		"UsernsMode":        never(namespace),
		"IpcMode":           oneOf("a job cannot share a namespace; leave it out, and set shm-size for more shared memory", "private"),
		"CgroupnsMode":      oneOf(namespace, "private"),
		"Cgroup":            never(namespace),
		"PortBindings":      never(ports),
		"PublishAllPorts":   never(ports),
		"Links":             never("a job cannot link to other containers; leave it out"),
		"Sysctls":           never("a job cannot set kernel parameters; leave it out"),
		"StorageOpt":        never("a job cannot set storage options; leave it out"),
		"OomKillDisable":    never("a job that runs out of memory is killed; leave it out"),
		"Isolation":         oneOf("this is Linux; leave it out", "default"),
	}
}

// logMiB is the size of a file of a container's log, in MiB, and logFiles is how many there are. This is
// on Docker's own disk: 256 MiB for all containers of a slot.
const logMiB, logFiles = 8, 2

// request combines the policy with what the rules took.
func (b *builder) request() (*container.CreateRequest, error) {
	p, h := b.policy, &b.host
	b.conf.Env = append(b.env, p.Env...)
	b.conf.Labels[slotLabel], b.conf.Labels[profileLabel] = strconv.Itoa(p.Slot), p.Profile

	h.CgroupParent = p.Slice
	h.CpusetCpus, h.CpusetMems = p.CPUs, p.MemoryNodes
	h.Memory, h.MemorySwap = b.memory, b.memory // equal: no swap
	h.ShmSize = b.shm
	if b.pids > 0 {
		h.PidsLimit = &b.pids
	}
	if b.init {
		h.Init = &b.init
	}
	h.CgroupnsMode, h.IpcMode = "private", "private"
	h.RestartPolicy.Name = "no"
	// The default seccomp and AppArmor profiles stay because nothing else is set.
	h.SecurityOpt = []string{"no-new-privileges"}
	// Otherwise device nodes made in the checkout would reach the neighbor, forged packets what
	// is beyond the node, and audit records the node's kernel log.
	h.CapDrop = slices.Compact(slices.Sorted(slices.Values(append(h.CapDrop, "AUDIT_WRITE", "MKNOD", "NET_RAW"))))
	h.LogConfig = container.LogConfig{Type: "local", Config: map[string]string{"max-size": strconv.Itoa(logMiB) + "m", "max-file": strconv.Itoa(logFiles)}}
	b.conf.Healthcheck = &container.HealthConfig{Test: []string{"NONE"}} // not the image's either
	// Name the runtime: if the engine's default is NVIDIA's, an image's environment would choose
	// the GPUs.
	h.Runtime = "runc"
	b.chooseNetwork()
	for _, u := range defaultUlimits {
		if !slices.ContainsFunc(h.Ulimits, func(o *container.Ulimit) bool { return o.Name == u.Name }) {
			h.Ulimits = append(h.Ulimits, &u)
		}
	}
	if b.policy.Profile == config.ProfileStrict {
		if err := b.strict(); err != nil {
			return nil, err
		}
	}
	if err := b.gpu(); err != nil {
		return nil, err
	}
	for _, target := range slices.Compact([]string{p.Binary, plan.ContainerBinary}) {
		if p.Binary != "" {
			b.mounts = append(b.mounts, bind(p.Program(), target, true))
		}
	}
	if len(b.mounts)+len(h.Tmpfs) > maxMounts {
		return nil, fmt.Errorf("a job can mount at most %d directories and files; mount a directory that contains several of them", maxMounts)
	}
	h.Mounts = b.mounts
	return &container.CreateRequest{Config: &b.conf, HostConfig: h}, nil
}

// gpu gives the container its slot's GPUs in the one way that the policy names. It fails closed:
// a container without a GPU would only look isolated.
func (b *builder) gpu() error {
	p, h := b.policy, &b.host
	switch {
	case p.Vendor == "": // a slot without a GPU
	case len(p.CDIDevices) > 0:
		h.DeviceRequests = []container.DeviceRequest{{Driver: "cdi", DeviceIDs: p.CDIDevices}}
	case len(p.DeviceRequests) > 0:
		h.DeviceRequests = []container.DeviceRequest{{Driver: "nvidia", DeviceIDs: p.DeviceRequests, Capabilities: [][]string{{"gpu"}}}}
		// NVIDIA's hook lets the container open the nodes without systemd's knowledge, and the
		// next daemon-reload, by any package's update, would take them from the job. Nodes that
		// the hook creates first, such as /dev/nvidia-uvm, may be missing.
		b.giveNodes(b.facts.present(p.DeviceNodes))
	case len(p.DeviceNodes) > 0:
		b.giveNodes(p.DeviceNodes)
		// Use numbers: an image need not have these names, and a container would not start with
		// a name that its image lacks.
		h.GroupAdd = slices.DeleteFunc(h.GroupAdd, func(name string) bool { return name == "video" || name == "render" })
		h.GroupAdd = append(h.GroupAdd, b.facts.gids(p.DeviceNodes)...)
	default:
		return fmt.Errorf("slot %s has no GPU in its policy: run kbnode reconcile on the node", p.Name)
	}
	return nil
}

func (b *builder) giveNodes(nodes []string) {
	for _, node := range nodes {
		b.host.Devices = append(b.host.Devices, container.DeviceMapping{PathOnHost: node, PathInContainer: node, CgroupPermissions: "rw"})
	}
}

func (b *builder) takeLabels(v any) error {
	labels, err := stringMap(v)
	for name, value := range labels {
		if strings.HasPrefix(name, jobLabels) {
			b.conf.Labels[name] = value
		}
	}
	return err
}

func (b *builder) takeStopTimeout(v any) error {
	n, err := number(v)
	if v != nil && err == nil {
		seconds := int(min(max(n, 0), maxStopSeconds))
		b.conf.StopTimeout = &seconds
	}
	return err
}

func (b *builder) takeCapDrop(v any) error {
	list, err := stringList(v)
	for _, name := range list {
		if !capForm.MatchString(name) {
			return fmt.Errorf("%.40q is not a capability; write one such as CHOWN, or ALL", name)
		}
		b.host.CapDrop = append(b.host.CapDrop, strings.TrimPrefix(strings.ToUpper(name), "CAP_"))
	}
	return err
}

// takeDir takes the container's working directory.
func (b *builder) takeDir(v any) error {
	if err := takeString(&b.conf.WorkingDir, pathForm, "/work")(v); err != nil {
		return err
	}
	return workingDir(b.conf.WorkingDir)
}

// workingDir refuses the kernel's file systems: through /proc/self/fd a process would start in a
// directory that the engine or its runtime has open.
func workingDir(dir string) error {
	dir = path.Clean("/" + dir)
	if kernel := below(dir, "/proc", "/sys", "/dev"); kernel != "" && below(dir, "/dev/shm") == "" {
		return fmt.Errorf("%.80q: a job cannot start below %s; choose another directory", dir, kernel)
	}
	return nil
}

// below returns the first of dirs that contains or equals a clean path, or "".
func below(path string, dirs ...string) string {
	for _, dir := range dirs {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return dir
		}
	}
	return ""
}

func anyStrings(v any) []string {
	list, _ := stringList(v)
	return list
}

// defaultUlimits are a container's limits unless the job sets them. The kernel counts the last
// three per user, for root across all containers, and compares with each process's own limit:
// with one, a job's use would count against other slots. The slot's memory bounds all three.
var defaultUlimits = []container.Ulimit{
	{Name: "core"}, {Name: "memlock", Soft: -1, Hard: -1}, {Name: "msgqueue", Soft: -1, Hard: -1}, {Name: "sigpending", Soft: -1, Hard: -1},
}
