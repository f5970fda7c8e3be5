package selftest

import (
	"archive/tar"
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/bootstrap"
	"github.com/gpu-mode/kbnode/internal/machine/confine"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/selftest/probe"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Limits that the containers ask for.
const (
	probeMemory   = 256 << 20 // bytes
	bombMemory    = 64 << 20
	maxAnswer     = 1 << 20         // bytes of a probe's answer
	maxSays       = 1000            // bytes of what it says besides
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

// containers runs probes as jobs: one that tries everything, and one that takes more memory than it has.
func (s *trial) containers(ctx context.Context) ([]Check, error) {
	target, stopNeighbor := s.neighbor(ctx)
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
	checks, err := s.probe(ctx, "probe", s.containerAsk(hostAddresses(l.Addr()), target), probeMemory, target)
	if err != nil {
		return nil, fmt.Errorf("a container that tries to escape: %w", err)
	}
	checks = append(checks, s.leftBehind(ctx))
	o, err := s.run(ctx, "memory", probe.Ask{Allocate: 8 * bombMemory}, bombMemory, io.Discard)
	if err != nil {
		return checks, fmt.Errorf("a container that takes all memory: %w", err)
	}
	t := &tries{do: s.hint(), checks: append(checks, s.leftBehind(ctx))}
	t.add(o.OutOfMemory || o.ExitCode == 137, "eight times its memory", fmt.Sprintf("exit code %d", o.ExitCode))
	return t.checks, nil
}

// plain runs a container that asks for everything that a job may have, and tries nothing.
func (s *trial) plain(ctx context.Context) ([]Check, error) {
	return s.probe(ctx, "plain", probe.Ask{}, s.policy.MemoryBytes, "")
}

// probe runs a probe to its end and judges what it saw.
func (s *trial) probe(ctx context.Context, what string, ask probe.Ask, memory int64, neighbor string) ([]Check, error) {
	var out bytes.Buffer
	o, err := s.run(ctx, what, ask, memory, &out)
	if err != nil {
		return nil, err
	}
	if o.ExitCode != 0 {
		return nil, fmt.Errorf("it exited with %d: %s", o.ExitCode, o.Reason)
	}
	f, err := readFacts(out.Bytes())
	if err != nil {
		return nil, err
	}
	return judgeContainer(s.plan, s.policy, ask, memory, neighbor, f), nil
}

// timeOf is containerTime for a slot with hooks: an epilog may be due, and a container has both.
func timeOf(p plan.JobPolicy) time.Duration { return containerTime + 3*p.HookLimit() }

// run runs a probe as a job of the slot to its end. The error is errJob if a job of the agent's ended it.
func (s *trial) run(ctx context.Context, what string, ask probe.Ask, memory int64, stdout io.Writer) (slot.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, timeOf(s.policy))
	defer cancel()
	request, err := json.Marshal(ask)
	if err != nil {
		return slot.Outcome{}, fmt.Errorf("ask a probe: %w", err)
	}
	var output bytes.Buffer
	left := maxAnswer
	o, err := bootstrap.RunSpec(ctx, s.policy.Socket, &job.Spec{
		Kind: job.KindPlugin, JobID: name + "-" + s.plan.Name + "-" + what + "-" + rand.Text(), Image: image, Pull: job.PullMissing,
		Command: []string{plan.ContainerBinary, "probe", string(request)}, Mounts: []job.Mount{{Source: ".", Target: "/work"}},
		Memory: memory, Profile: config.ProfileCompatible, Network: job.NetworkBridge, Checkout: job.Checkout{Mode: job.CheckoutNone},
	}, func(kind slot.FrameKind, data []byte) {
		switch {
		case kind == slot.FrameStdout:
			data = data[:min(len(data), left)]
			left -= len(data)
			_, _ = stdout.Write(data) // what is missing is no valid answer
		case output.Len() < maxSays:
			output.Write(data)
		}
	})
	switch {
	case err != nil:
	case o.Canceled && ctx.Err() != nil:
		err = fmt.Errorf("it was ended: %w", ctx.Err())
	case o.Canceled:
		err = errJob
	case o.Refused+o.NodeFault != "":
		err = errors.New(o.Refused + o.NodeFault)
	}
	o.Reason = strings.TrimSpace(o.Reason + " " + text.Line(output.String(), maxSays))
	return o, err
}

// leftBehind checks that nothing of a container is left. The probe leaves a process behind that
// survives its parents.
func (s *trial) leftBehind(ctx context.Context) Check {
	var left []string
	var err error
	for deadline := time.Now().Add(goneTime); ; {
		left, err = slot.Containers("/", s.state.Slice.Cgroup)
		if err == nil && len(left) == 0 || time.Now().After(deadline) || limit.Sleep(ctx, 200*time.Millisecond) != nil {
			break
		}
	}
	c := Check{Tried: "processes of a container that has ended", Saw: "none", Held: err == nil && len(left) == 0}
	switch {
	case err != nil:
		c.Saw, c.Do = err.Error(), s.hint()
	case len(left) > 0:
		c.Saw, c.Do = "some still run", "sudo systemctl stop "+strings.Join(left, " ")
	}
	return c
}

// neighbor runs a container that listens in another idle slot, and returns its address, or "" if there
// is no such slot. A fault of that slot is for its own report.
func (s *trial) neighbor(ctx context.Context) (address string, stop func()) {
	i := slices.IndexFunc(s.t.idle, func(o *trial) bool { return o.plan.Index == s.plan.Index })
	other := s.t.idle[(i+1)%len(s.t.idle)]
	if other.plan.Index == s.plan.Index || other.policy.Network == config.NetworkNone || other.hasJob() {
		return "", func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	out, in := io.Pipe()
	go func() {
		defer close(ended)
		_, _ = other.run(ctx, "listener", probe.Ask{Listen: listenPort}, bombMemory, in)
		_ = in.Close()
	}()
	line, _ := bufio.NewReader(out).ReadString('\n')
	_ = out.Close()
	return strings.TrimSpace(line), func() { cancel(); <-ended }
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
	ask := probe.Ask{
		Calls: true, Daemon: true, Proc: true,
		Windows: windows("/sys"),
		Numbers: numbers(s.t.foreignDevices(s.plan)),
		Open: []string{
			plan.ContainerBinary, // proves that it sees anything
			plan.WorkDir(s.plan.Index), plan.TokenPath, plan.RunDir(s.plan.Index) + "/" + plan.TokenName,
			"/var/lib/docker", "/proc/1/root/etc/shadow", "/sys/firmware/efi", "/sys/kernel/debug/tracing",
		},
		Write: []string{
			plan.ContainerBinary, "/proc/sys/kernel/core_pattern", "/proc/sys/vm/drop_caches", "/proc/sys/kernel/modprobe",
			"/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/sys/kernel/mm/transparent_hugepage/enabled",
			"/sys/power/state", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/cpuset.cpus", "/sys/fs/cgroup/release_agent",
			"/sys/fs/cgroup/devices.allow", "/dev/kmsg",
		},
		Unix: []string{"/var/run/docker.sock", "/run/docker.sock", s.policy.DockerSocket, s.policy.Socket, "/run/containerd/containerd.sock"},
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
