package doctor

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/docs"
	"github.com/gpu-mode/kbnode/internal/machine/installer"
)

// checks are all checks by group, in the order in which they are shown. Those for a bare machine are in the
// order in which to fix their findings. docs/doctor.md says what each is about, and what to do if it fails.
var checks = []struct {
	group string
	list  []Check
}{
	{"node", []Check{
		{ID: "config", Bare: true, Recorded: true, Worst: Fail, Run: nodeConfig},
		{ID: "inventory", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"config"}, Limit: readTime, Run: nodeInventory},
		{ID: "plan", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: nodePlan},
		{ID: "installed", Recorded: true, Worst: Fail, Needs: []string{"config"}, Run: nodeInstalled},
		{ID: "state", Worst: Fail, Needs: []string{"plan", "installed"}, Limit: readTime, Run: nodeState},
		{ID: "as-planned", Worst: Fail, Needs: []string{"state"}, Run: asPlanned},
		{ID: "daemon", Worst: Fail, Needs: []string{"state"}, Run: nodeDaemon},
		{ID: "health", Worst: Fail, Needs: []string{"daemon"}, Run: nodeHealth},
		{ID: "metrics", Worst: Warn, Needs: []string{"config", "daemon"}, Run: nodeMetrics},
	}},
	{"gpu", []Check{
		{ID: "nvidia-driver", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: nvidiaDriver},
		{ID: "nvidia-library", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"nvidia-driver"}, Run: nvidiaLibrary},
		{ID: "nvidia-nvml", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"nvidia-driver"}, Run: nvidiaNVML},
		{ID: "nvidia-uvm", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"nvidia-driver"}, Run: nvidiaUVM},
		{ID: "amd-driver", Vendor: "amd", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: amdDriver},
		{ID: "gpu-present", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: gpuPresent},
		{ID: "gpu-answers", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: gpuAnswers},
		{ID: "gpu-devices", Bare: true, Worst: Fail, Needs: []string{"plan"}, Run: gpuDevices},
		{ID: "nvidia-fabricmanager", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"nvidia-driver"}, Run: fabricManager},
		{ID: "gpu-health", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: gpuHealth},
		{ID: "nvidia-mig", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: ofNVIDIA(migModes)},
		{ID: "nvidia-compute-mode", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: ofNVIDIA(computeModes)},
		{ID: "nvidia-ecc", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Warn, Needs: []string{"inventory"}, Run: ofNVIDIA(eccModes)},
		{ID: "nvidia-clocks", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Warn, Needs: []string{"inventory"}, Run: ofNVIDIA(gpuClocks)},
		{ID: "nvidia-power", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Warn, Needs: []string{"inventory"}, Run: ofNVIDIA(powerLimits)},
		{ID: "amd-partitions", Vendor: "amd", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: ofAMD(partitionModes)},
		{ID: "amd-performance-level", Vendor: "amd", Bare: true, Recorded: true, Worst: Warn, Needs: []string{"inventory"}, Run: ofAMD(performanceLevels)},
		{ID: "amd-power", Vendor: "amd", Bare: true, Worst: Warn, Needs: []string{"inventory"}, Run: ofAMD(amdPower)},
	}},
	{"docker", []Check{
		{ID: "docker-config", Bare: true, Worst: Fail, Run: dockerConfig},
		{ID: "docker-engine", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: dockerEngine},
		{ID: "docker-boot", Bare: true, Worst: Warn, Needs: []string{"docker-engine"}, Run: dockerBoot},
		{ID: "docker-live-restore", Bare: true, Worst: Warn, Needs: []string{"docker-engine"}, Run: dockerLiveRestore},
		{ID: "docker-version", Bare: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerVersion},
		{ID: "docker-cgroup-driver", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerCgroupDriver},
		{ID: "docker-runc", Bare: true, Worst: Warn, Needs: []string{"docker-engine"}, Run: dockerRunc},
		{ID: "docker-storage-driver", Bare: true, Recorded: true, Worst: Warn, Needs: []string{"docker-engine"}, Run: dockerStorageDriver},
		{ID: "docker-root", Bare: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerRoot},
		{ID: "docker-api", Bare: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerApi},
		{ID: "docker-socket", Bare: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerSocket},
		{ID: "docker-userns", Bare: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerUserns},
		{ID: "docker-seccomp", Bare: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerSeccomp},
		{ID: "docker-network", Bare: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerNetwork},
		{ID: "docker-lan", Bare: true, Worst: Warn, Needs: []string{"config"}, Run: dockerLAN},
		{ID: "docker-toolkit", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerToolkit},
		{ID: "docker-toolkit-version", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"docker-toolkit"}, Run: dockerToolkitVersion},
		{ID: "docker-cdi", Vendor: "nvidia", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"docker-engine"}, Run: dockerCDI},
		{ID: "docker-cdi-spec", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"docker-cdi", "docker-toolkit"}, Run: dockerCDISpec},
		{ID: "docker-cdi-driver", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"docker-cdi-spec"}, Run: dockerCDIDriver},
		{ID: "docker-cdi-slots", Vendor: "nvidia", Bare: true, Worst: Fail, Needs: []string{"plan", "docker-cdi-spec"}, Run: dockerCDISlots},
		{ID: "docker-cdi-refresh", Vendor: "nvidia", Bare: true, Worst: Warn, Needs: []string{"docker-cdi-spec"}, Run: dockerCDIRefresh},
	}},
	{"slots", []Check{
		{ID: "slot-limits", Worst: Fail, Needs: []string{"state"}, Run: slotLimits},
		{ID: "slot-disk", Worst: Fail, Needs: []string{"state"}, Run: slotDisk},
		{ID: "slot-parked", Worst: Fail, Needs: []string{"state"}, Run: slotParked},
		{ID: "slot-hooks", Bare: true, Worst: Fail, Needs: []string{"config"}, Run: slotHooks},
		{ID: "slot-gpu-processes", Worst: Fail, Needs: []string{"plan"}, Bare: true, Run: slotGPUProcesses},
		{ID: "container", Worst: Fail, Slow: true, Needs: []string{"state", "docker-engine", "slot-limits", "slot-disk"}, Limit: 45 * time.Second, Run: slotsContainer},
	}},
	{"agent", []Check{
		{ID: "agent-other", Bare: true, Worst: Fail, Run: otherAgents},
		{ID: "agent-binary", Bare: true, Worst: Fail, Needs: []string{"plan"}, Run: agentBinary},
		{ID: "agent-version", Bare: true, Worst: Warn, Needs: []string{"agent-binary"}, Run: agentVersion},
		{ID: "agent-endpoint", Bare: true, Worst: Fail, Needs: []string{"config"}, After: []string{"plan"}, Run: agentEndpoint},
		{ID: "agent-token", Worst: Fail, Needs: []string{"installed"}, Run: agentToken},
		{ID: "agent-token-accepted", Worst: Fail, Needs: []string{"agent-token", "agent-endpoint"}, Limit: 16 * time.Second, Run: tokenAccepted},
		{ID: "agent-hooks", Worst: Fail, Needs: []string{"plan", "installed"}, Run: agentHooks},
		{ID: "agent-unit", Worst: Fail, Needs: []string{"state"}, Run: agentUnits},
		{ID: "agent-socket", Worst: Fail, Needs: []string{"state"}, Run: sockets},
		{ID: "agent-running", Worst: Fail, Needs: []string{"state", "agent-token-accepted"}, Run: agentsRunning},
		{ID: "agent-drained", Worst: Warn, Needs: []string{"state"}, Run: drained},
	}},
	{"buildkite", []Check{
		{ID: "buildkite-queue", Worst: Fail, Needs: []string{"agent-running"}, Run: queues},
		{ID: "buildkite-agents", Worst: Fail, Needs: []string{"agent-running"}, Run: connected},
	}},
	{"image", []Check{
		{ID: "image-state", Worst: Warn, Needs: []string{"installed"}, Run: imageState},
		{ID: "image-present", Worst: Fail, Needs: []string{"installed", "docker-engine"}, Run: imagePresent},
		{ID: "image-registry", Bare: true, Worst: Warn, Needs: []string{"docker-engine"}, Run: imageRegistry},
		{ID: "image-proven", Worst: Warn, Needs: []string{"image-state", "image-present"}, Run: imageProven},
		{ID: "image-update", Worst: Warn, Needs: []string{"image-state"}, Run: imageUpdate},
		{ID: "image-schedule", Worst: Warn, Needs: []string{"state"}, Run: imageSchedule},
		{ID: "image-others", Worst: Warn, Needs: []string{"installed"}, Run: imageOthers},
	}},
	{"noise", []Check{
		{ID: "noise-irqbalance", Bare: true, Worst: Warn, Needs: []string{"system-systemd", "plan"}, Run: irqbalance},
		{ID: "noise-isolated", Bare: true, Worst: Warn, Needs: []string{"plan"}, Run: noiseIsolated},
		{ID: "noise-timers", Bare: true, Worst: Warn, Needs: []string{"system-systemd"}, Run: noiseTimers},
		{ID: "noise-upgrades", Bare: true, Worst: Warn, Needs: []string{"system-systemd"}, Run: noiseUpgrades},
		{ID: "noise-swap", Bare: true, Worst: Warn, Run: noiseSwap},
	}},
	{"system", []Check{
		{ID: "system-systemd", Bare: true, First: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: systemSystemd},
		{ID: "system-cgroup", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: systemCgroup},
		{ID: "system-kernel", Bare: true, Worst: Warn, Needs: []string{"inventory"}, Run: systemKernel},
		{ID: "system-modules", Bare: true, Worst: Fail, Needs: []string{"inventory"}, Run: systemModules},
		{ID: "system-read-only", Bare: true, Worst: Fail, Run: systemReadOnly},
		{ID: "system-space", Bare: true, Worst: Fail, Needs: []string{"inventory"}, Run: systemSpace},
		{ID: "system-git", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: installed("git", installer.Git, func(m *Machine) string { return m.Inventory.Software.Git })},
		{ID: "system-mkfs", Bare: true, Recorded: true, Worst: Fail, Needs: []string{"inventory"}, Run: installed("mkfs.ext4", installer.MkfsExt4, func(m *Machine) string { return m.Inventory.Software.MkfsExt4 })},
		{ID: "system-users", Bare: true, Worst: Fail, Needs: []string{"plan"}, Run: systemUsers},
		{ID: "system-sandbox", Bare: true, Worst: Fail, Run: systemSandbox},
		{ID: "system-core-pattern", Bare: true, Worst: Warn, Run: systemCorePattern},
		{ID: "system-ptrace", Worst: Warn, Needs: []string{"state"}, Run: systemPtrace},
		{ID: "system-pids", Bare: true, Worst: Warn, Needs: []string{"plan"}, Run: systemPids},
		{ID: "system-clock", Bare: true, Worst: Warn, Needs: []string{"system-systemd"}, Run: systemClock},
		{ID: "system-link", Bare: true, Worst: Warn, Run: systemLink},
	}},
	{"selftest", []Check{
		{ID: "image-large", Bare: true, Worst: Warn, Run: imageLarge},
		{ID: "escape", Alone: true, Worst: Fail, Needs: []string{"state", "docker-engine"}, Run: slotsEscape},
	}},
	{"acceptance", []Check{
		{ID: "accept-image", Alone: true, Worst: Fail, Needs: []string{"installed", "docker-engine"}, Run: acceptImage},
		{ID: "accept-evaluation", Alone: true, Worst: Fail, Needs: []string{"state", "docker-engine"}, Run: evaluations(false)},
		{ID: "accept-together", Alone: true, Worst: Fail, Needs: []string{"state", "docker-engine"}, Run: evaluations(true)},
		{ID: "accept-restart", Alone: true, Worst: Fail, Needs: []string{"state"}, Run: agentRestart},
	}},
}

// All returns all checks in the order in which they are shown.
func All() (all []Check) {
	for _, g := range checks {
		for _, c := range g.list {
			c.Group, c.About = g.group, chapters()[c.ID].about
			all = append(all, c)
		}
	}
	return all
}

// chapter is what docs/doctor.md says about a check: in one line what is true if it passes, and below that
// what it means otherwise, and what to do.
type chapter struct{ about, text string }

var chapters = sync.OnceValue(func() map[string]chapter {
	all := map[string]chapter{}
	for part := range strings.SplitSeq(docs.Doctor, "\n### ") {
		id, text, _ := strings.Cut(part, "\n\n*")
		about, text, _ := strings.Cut(text, "*\n\n")
		text, _, _ = strings.Cut(text, "\n## ")
		all[id] = chapter{about, text}
	}
	return all
})

// Explain returns what is true if a check passes, what it means otherwise, and what to do. For a
// group it returns that of each of its checks, below the check's name. For unknown words it
// returns a *UnknownError.
func Explain(name string) (string, error) {
	var all []string
	for _, c := range All() {
		switch name {
		case c.ID:
			return chapters()[name].String(), nil
		case c.Group:
			all = append(all, c.ID+"\n\n"+chapters()[c.ID].String())
		}
	}
	if all == nil {
		return "", unknown(All(), name)
	}
	return strings.Join(all, "\n"), nil
}

var (
	link = regexp.MustCompile(`\[([^\]]+)\]\(([^)\s]+)\)`)
	// linkCheck is a link within the page, which has a heading for each check.
	linkCheck = regexp.MustCompile(`\[([^\]]+)\]\(#([a-z0-9-]+)\)`)
	linkPage  = regexp.MustCompile(`\]\(((?:adr/)?[a-z0-9-]+\.md)`)
)

// String returns a chapter with links as a terminal shows them.
func (c chapter) String() string {
	text := linkPage.ReplaceAllString(c.text, "]("+Pages+"$1")
	text = linkCheck.ReplaceAllStringFunc(text, func(s string) string {
		part := linkCheck.FindStringSubmatch(s)
		switch isCheck := slices.ContainsFunc(All(), func(c Check) bool { return c.ID == part[2] }); {
		case !isCheck:
			return "[" + part[1] + "](" + Pages + "doctor.md#" + part[2] + ")"
		case part[1] == part[2]:
			return part[1]
		}
		return part[1] + " (" + part[2] + ")"
	})
	return c.about + "\n\n" + strings.TrimSpace(link.ReplaceAllString(text, "$1 ($2)")) + "\n"
}
