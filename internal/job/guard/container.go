package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
)

// profileLabel names the job profile that a container was created with.
const profileLabel = "kbnode.profile"

// facts are what the builder needs to know of the node.
type facts struct {
	gids    func(nodes []string) []string // the groups that own these device nodes, numeric
	named   []string                      // the node's groups video and render, numeric
	present func(nodes []string) []string // those of these device nodes that exist
	user    string                        // the slot's user, "UID:GID"
}

// builder makes the request for a job's container. It sets each field itself.
type builder struct {
	policy plan.JobPolicy
	facts  facts

	conf container.Config
	host container.HostConfig
}

// logMiB is the size of a file of a container's log, in MiB, and logFiles is how many there are. This is
// on Docker's own disk: 256 MiB for all containers of a slot.
const logMiB, logFiles = 8, 2

// request returns the request, in which the slot decides what the job may not.
func (b *builder) request() (*container.CreateRequest, error) {
	p, h := b.policy, &b.host
	b.conf.Env = append(b.conf.Env, p.Env...)
	b.conf.Labels[slot.Label], b.conf.Labels[profileLabel] = strconv.Itoa(p.Slot), p.Profile

	h.CgroupParent = p.Slice
	h.CpusetCpus, h.CpusetMems = p.CPUs, p.MemoryNodes
	h.MemorySwap = h.Memory // equal: no swap
	h.CgroupnsMode, h.IpcMode = "private", "private"
	h.RestartPolicy.Name = "no"
	// The confiner adds profiles of seccomp and AppArmor.
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
	// The kernel notes for an hour how fast each address answered, and a connection's timeout says so, and whether one knows TCP
	// Fast Open, and what opens a connection says so; and for a minute, which ports a connection had (TIME_WAIT). With the addresses of the loopback interface, a program could leave a bit in each
	// for the one that judges it.
	h.Sysctls = map[string]string{"net.ipv4.tcp_no_metrics_save": "1", "net.ipv4.tcp_fastopen": "0", "net.ipv4.tcp_max_tw_buckets": "0"}
	for _, u := range defaultUlimits {
		if !slices.ContainsFunc(h.Ulimits, func(o *container.Ulimit) bool { return o.Name == u.Name }) {
			h.Ulimits = append(h.Ulimits, &u)
		}
	}
	if b.policy.Profile == config.ProfileStrict {
		b.strict()
	}
	if err := b.gpu(); err != nil {
		return nil, err
	}
	for _, target := range slices.Compact([]string{p.Binary, plan.ContainerBinary}) {
		if p.Binary != "" {
			h.Mounts = append(h.Mounts, bind(p.Program(), target, true))
		}
	}
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

// defaultUlimits are a container's limits unless the job sets them. The kernel counts the last
// three per user, for root across all containers, and compares with each process's own limit:
// with one, a job's use would count against other slots. The slot's memory bounds all three.
var defaultUlimits = []container.Ulimit{
	{Name: "core"}, {Name: "memlock", Soft: -1, Hard: -1}, {Name: "msgqueue", Soft: -1, Hard: -1}, {Name: "sigpending", Soft: -1, Hard: -1},
}

// bind returns a mount of a host path. A Mount has no colons to misread, and the engine makes no
// directory if the source is missing.
func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
	}
}

// nodeGroups returns the groups that own these device nodes, so that a container that does not
// run as root can open them.
func nodeGroups(nodes []string) []string {
	var gids []string
	for _, node := range nodes {
		info, err := os.Stat(node)
		if err != nil {
			continue // the engine says which node is missing
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Gid != 0 {
			gids = append(gids, strconv.FormatUint(uint64(st.Gid), 10))
		}
	}
	slices.Sort(gids)
	return slices.Compact(gids)
}

// numbers returns the IDs of those groups that the node has: pipelines name video and render by
// number, since not every image has them.
func numbers(groups ...string) (ids []string) {
	for _, name := range groups {
		if g, err := user.LookupGroup(name); err == nil {
			ids = append(ids, g.Gid)
		}
	}
	return ids
}

func nodesPresent(nodes []string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		_, err := os.Stat(node)
		return err != nil
	})
}

// linkNodes makes the links that udev makes for what the kernel announces, and that no one makes
// for NVIDIA's nodes: if /dev/char/195:5 is missing, Debian 12's runc does not tell systemd
// about the device, and the next daemon-reload takes it from the container.
func linkNodes(dir string, nodes []string) error {
	var errs []error
	for _, node := range nodes {
		info, err := os.Stat(node)
		if err != nil {
			continue // no container gets it
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode()&os.ModeCharDevice == 0 {
			continue
		}
		link := filepath.Join(dir, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		if _, err := os.Stat(link); err == nil {
			continue
		}
		if err := ignoreAbsent(os.Remove(link)); err != nil { // it leads nowhere
			errs = append(errs, err)
		} else if err := os.Symlink(node, link); err != nil && !errors.Is(err, fs.ErrExist) { // by another guard
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
