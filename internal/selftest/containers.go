package selftest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/config"
	"github.com/gpu-mode/kbnode/internal/confine"
	"github.com/gpu-mode/kbnode/internal/docker"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/selftest/hostile"
	"github.com/gpu-mode/kbnode/internal/selftest/probe"
)

// Limits that the containers ask for.
const (
	probeMemory   = 256 << 20 // bytes
	bombMemory    = 64 << 20
	probePids     = 64
	containerTime = 5 * time.Minute // for one container on a busy machine
	goneTime      = 20 * time.Second
	listenPort    = 4711
)

// emptyRoot returns an image archive with only the directories that Docker and the drivers'
// hooks expect.
func emptyRoot() (io.Reader, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range []string{"dev", "etc", "proc", "run", "sys", "tmp", "usr", "usr/local", "usr/local/bin", "var", "var/tmp"} {
		h := &tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755}
		if strings.HasSuffix(dir, "tmp") {
			h.Mode = 0o1777
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("make an image: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("make an image: %w", err)
	}
	return &b, nil
}

// containers runs probes as jobs: one that tries everything, and one that takes more memory
// than it has.
func (s *trial) containers(ctx context.Context) ([]Check, error) {
	target, stopNeighbor, err := s.neighbor(ctx)
	if err != nil {
		return nil, err
	}
	defer stopNeighbor()
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", ":0")
	if err != nil {
		return nil, fmt.Errorf("listen for probes: %w", err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	ask := s.containerAsk(hostAddresses(l.Addr()), target)
	end, id, err := s.run(ctx, "probe", ask, probeMemory)
	if err != nil {
		return []Check{s.refused("a container that tries to escape", err)}, nil
	}
	checks := s.gone(ctx, id)
	f, err := readFacts(end.Stdout)
	if err != nil || end.ExitCode != 0 {
		return append(checks, s.refused("a container that tries to escape", fmt.Errorf("it exited with %d: %s", end.ExitCode, bytes.TrimSpace(end.Stderr)))), nil
	}
	checks = append(checks, judgeContainer(s.plan, s.policy, ask, probeMemory, target, f)...)
	end, id, err = s.run(ctx, "memory", probe.Ask{Allocate: 8 * bombMemory}, bombMemory)
	if err != nil {
		return append(checks, s.refused("a container that takes all memory", err)), nil
	}
	checks = append(checks, s.gone(ctx, id)...)
	checks = append(checks, Check{
		Group: "container", Tried: "eight times its memory", Saw: fmt.Sprintf("exit code %d", end.ExitCode),
		Held: end.OOMKilled || end.ExitCode == 137, Do: s.hint(),
	})
	return tidyChecks(checks), nil
}

// plain runs a container that asks for everything that a job may have, and tries nothing.
func (s *trial) plain(ctx context.Context) ([]Check, error) {
	const tried = "a container"
	memory := s.policy.MemoryBytes
	if _, err := s.checkout("/"); err != nil {
		return nil, err
	}
	end, _, err := s.run(ctx, "plain", probe.Ask{}, memory)
	if err != nil {
		return []Check{s.refused(tried, err)}, nil
	}
	f, err := readFacts(end.Stdout)
	if err != nil || end.ExitCode != 0 {
		return []Check{s.refused(tried, fmt.Errorf("it exited with %d: %s", end.ExitCode, bytes.TrimSpace(end.Stderr)))}, nil
	}
	return judgeContainer(s.plan, s.policy, probe.Ask{}, memory, "", f), nil
}

// refused is the check for a container that could not run.
func (s *trial) refused(tried string, err error) Check {
	return Check{Group: "container", Tried: tried, Saw: err.Error(), Do: s.hint()}
}

// run runs a probe through the slot's guard to its end, and checks what the engine made of
// it.
func (s *trial) run(ctx context.Context, what string, ask probe.Ask, memory int64) (docker.Ended, string, error) {
	ctx, cancel := context.WithTimeout(ctx, containerTime)
	defer cancel()
	text, err := json.Marshal(ask)
	if err != nil {
		return docker.Ended{}, "", fmt.Errorf("ask a probe: %w", err)
	}
	guarded, closeGuarded, err := s.guarded()
	if err != nil {
		return docker.Ended{}, "", err
	}
	defer closeGuarded()
	id, err := guarded.Create(ctx, docker.Run{
		Name: s.name(what), Image: image, Cmd: []string{plan.ContainerBinary, "probe", string(text)},
		Binds: []string{s.policy.WorkRoot + "/" + hostile.Name + ":/work"}, Memory: min(memory, s.policy.MemoryBytes), Pids: probePids,
	})
	if err != nil {
		return docker.Ended{}, "", err
	}
	defer func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
		defer cancel()
		if err := s.t.engine.Discard(clean, id); err != nil {
			s.t.Log.Warn("container left behind", "id", id, "err", err)
		}
	}()
	faults, err := s.faults(ctx, id)
	if err != nil {
		return docker.Ended{}, "", err
	}
	if len(faults) > 0 {
		s.add(Check{Group: "container", Tried: "its configuration", Saw: strings.Join(faults, "; "), Do: s.hint()})
	} else {
		s.add(Check{Group: "container", Tried: "its configuration", Saw: "the slot's policy", Held: true})
	}
	if err := guarded.Start(ctx, id); err != nil {
		return docker.Ended{}, "", err
	}
	end, err := guarded.Wait(ctx, id)
	return end, id, err
}

// gone checks that nothing of a container is left. The probe leaves a process behind that
// survives its parents.
func (s *trial) gone(ctx context.Context, id string) []Check {
	scope := filepath.Join("/sys/fs/cgroup", s.state.Slice.Cgroup, "docker-"+id+".scope")
	c := Check{Group: "left behind", Tried: "processes of a container that has ended", Do: "sudo systemctl stop docker-" + id + ".scope"}
	for deadline := time.Now().Add(goneTime); ; {
		events, err := os.ReadFile(scope + "/cgroup.events")
		if err != nil || !strings.Contains(string(events), "populated 1") {
			c.Saw, c.Held = "none", true
			break
		}
		if c.Saw = "some still run"; time.Now().After(deadline) || ctx.Err() != nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	m := Check{Group: "left behind", Tried: "mounts of a container that has ended", Saw: "none", Held: true, Do: s.hint()}
	entries, err := os.ReadDir(plan.RunDir(s.plan.Index) + "/mounts")
	if err == nil && len(entries) > 0 {
		m.Saw, m.Held = fmt.Sprintf("%d in %s/mounts", len(entries), plan.RunDir(s.plan.Index)), false
	}
	return tidyChecks([]Check{c, m})
}

// neighbor runs a container that listens in another idle slot, and returns its address, or
// "" if there is no such slot.
func (s *trial) neighbor(ctx context.Context) (address string, stop func(), err error) {
	stop = func() {}
	i := slices.IndexFunc(s.t.idle, func(o *trial) bool { return o.plan.Index == s.plan.Index })
	other := s.t.idle[(i+1)%len(s.t.idle)]
	pol := other.policy
	if other.plan.Index == s.plan.Index || pol.Network == config.NetworkNone || other.hasJob() {
		return "", stop, nil
	}
	text, err := json.Marshal(probe.Ask{Listen: listenPort})
	if err != nil {
		return "", stop, fmt.Errorf("ask a probe: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, containerTime)
	defer cancel()
	guarded, err := docker.New(pol.Socket)
	if err != nil {
		return "", stop, err
	}
	defer func() { _ = guarded.Close() }()
	id, err := guarded.Create(ctx, docker.Run{
		Name: s.name("listener"), Image: image, Cmd: []string{plan.ContainerBinary, "probe", string(text)}, Memory: bombMemory, Pids: probePids,
	})
	if err != nil {
		// That is a fault of the other slot, which its own report shows.
		return "", stop, nil //nolint:nilerr // see above
	}
	stop = func() {
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTime)
		defer cancel()
		if err := s.t.engine.Discard(clean, id); err != nil {
			s.t.Log.Warn("container left behind", "id", id, "err", err)
		}
	}
	if err := guarded.Start(ctx, id); err != nil {
		return "", stop, nil //nolint:nilerr // see above
	}
	addr, err := s.t.engine.Address(ctx, id)
	if err != nil || !addr.IsValid() {
		return "", stop, err
	}
	return net.JoinHostPort(addr.String(), strconv.Itoa(listenPort)), stop, nil
}

// hostAddresses returns the addresses at which containers could reach a listener on this
// machine.
func hostAddresses(at net.Addr) []string {
	const most = 16
	var list []string
	port := strconv.Itoa(at.(*net.TCPAddr).Port)
	all, _ := net.InterfaceAddrs()
	for _, a := range all {
		ip, ok := a.(*net.IPNet)
		if ok && !ip.IP.IsLoopback() && !ip.IP.IsLinkLocalUnicast() && len(list) < most {
			list = append(list, net.JoinHostPort(ip.IP.String(), port))
		}
	}
	return list
}

// windows returns the files that give access to the memory, registers and configuration of
// the node's devices: by their own paths, by the bus's links and in /proc.
func windows(sys string) []string {
	const most = 768 // in one argument of the probe
	list, _ := confine.Windows(sys)
	found := slices.Clone(list)
	for _, path := range list {
		if device := filepath.Base(filepath.Dir(path)); filepath.Base(path) == "config" && strings.Count(device, ":") == 2 {
			found = append(found, sys+"/bus/pci/devices/"+device+"/config")
			_, bus, _ := strings.Cut(device, ":")
			found = append(found, "/proc/bus/pci/"+strings.Replace(bus, ":", "/", 1))
		}
	}
	slices.SortStableFunc(found, func(a, b string) int { return strings.Compare(filepath.Base(b), filepath.Base(a)) }) // BARs first
	return append(found[:min(len(found), most)], "/proc/bus/pci/devices", "/proc/kpageflags")
}

// metadata is where a cloud machine gets its own credentials.
const metadata = "169.254.169.254:80"

// containerAsk returns what a hostile submission would try.
func (s *trial) containerAsk(host []string, neighbor string) probe.Ask {
	k := s.plan.Index
	ask := probe.Ask{
		Calls: true, Daemon: true, Forks: 4 * probePids, Proc: true,
		Windows: windows("/sys"),
		Numbers: numbers(s.t.machine.others(s.plan)),
		Open: []string{
			plan.ContainerBinary, // proves that it sees anything
			"/work/out" + plan.TokenPath, "/work/out/etc/shadow", "/work/other/builds", plan.WorkDir(k), plan.TokenPath,
			"/var/lib/docker", "/proc/1/root/etc/shadow", "/sys/firmware/efi", "/sys/kernel/debug/tracing",
		},
		Write: []string{
			plan.ContainerBinary, "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/modprobe",
			"/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/mm/transparent_hugepage/enabled",
			"/sys/power/state", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpuset.cpus", "/sys/fs/cgroup/release_agent",
			"/sys/fs/cgroup/devices.allow", "/dev/kmsg",
		},
		Unix: []string{"/var/run/docker.sock", "/run/docker.sock", s.policy.DockerSocket, s.policy.Socket, "/run/containerd/containerd.sock", "/work/out" + s.policy.DockerSocket},
		TCP:  append(slices.Clone(host), metadata),
	}
	if neighbor != "" {
		ask.TCP = append(ask.TCP, neighbor)
	}
	if s.policy.DiskBytes > 0 {
		ask.Disks = []string{"/work"}
		if s.policy.Profile != config.ProfileStrict {
			ask.Disks = append(ask.Disks, "/", "/etc/hosts")
		}
	}
	return ask
}
