package inventory

import (
	"cmp"
	"slices"
	"strings"
)

// Fill returns the inventory with each subject that could not be read as it was in an earlier one. What could be
// read of the installed software counts as read. Without an earlier one, last is nil, such a subject is empty.
func (inv *Inventory) Fill(last *Inventory) *Inventory {
	out := *inv
	last = cmp.Or(last, &Inventory{})
	unread := func(subject string) bool { return slices.Contains(inv.Unread, subject) }
	if unread(SubjectHost) || Nameless(inv.Hostname) && last.Hostname != "" {
		out.Hostname = last.Hostname
	}
	if unread(SubjectCPU) || unread(SubjectMemory) { // both are read from the NUMA nodes, and Virt from the CPUs
		out.CPU, out.Memory, out.OS.Virt = last.CPU, last.Memory, last.OS.Virt
	}
	out.Software = inv.Software.fill(last.Software, unread)
	if now, was := inv.NVIDIA, last.NVIDIA; now != nil && was != nil {
		nv := *now
		if unread(SubjectDriver) {
			nv.DriverVersion = cmp.Or(nv.DriverVersion, was.DriverVersion)
		}
		// Only NVML tells the version of CUDA, and a driver supports always the same.
		if nv.DriverVersion != "" && nv.DriverVersion == was.DriverVersion {
			nv.CUDAVersion = cmp.Or(nv.CUDAVersion, was.CUDAVersion)
		}
		out.NVIDIA = &nv
	}
	if now, was := inv.AMD, last.AMD; now != nil && was != nil && unread(SubjectDriver) {
		amd := *now
		amd.DriverVersion = cmp.Or(amd.DriverVersion, was.DriverVersion)
		out.AMD = &amd
	}
	out.Disks = slices.Clone(inv.Disks)
	for _, d := range last.Disks {
		if unread(DiskSubject(d.Path)) && !slices.ContainsFunc(inv.Disks, func(now DiskFree) bool { return now.Path == d.Path }) {
			out.Disks = append(out.Disks, d)
		}
	}
	return &out
}

// Nameless reports whether a host name is what a machine without one has: at each boot, until DHCP, DNS or cloud-init
// gives it its own, and if they do not.
func Nameless(host string) bool {
	name, _, _ := strings.Cut(strings.ToLower(host), ".")
	return name == "localhost" || name == "(none)"
}

// fill is Fill for the software.
func (now Software) fill(last Software, unread func(subject string) bool) Software {
	out := now
	if unread(SubjectSystem) {
		out.Systemd = cmp.Or(now.Systemd, last.Systemd)
	}
	if unread(SubjectFiles) {
		out.CgroupV2, out.Cron = now.CgroupV2 || last.CgroupV2, now.Cron || last.Cron
		out.Git, out.MkfsExt4, out.Toolkit = cmp.Or(now.Git, last.Git), cmp.Or(now.MkfsExt4, last.MkfsExt4), cmp.Or(now.Toolkit, last.Toolkit)
	}
	// An agent that does not report its version is unread, too: its keys depend on it.
	if now.Agent.Path == "" && unread(SubjectFiles) || now.Agent.Path != "" && (now.Agent.Version == "" || unread(SubjectAgent)) {
		out.Agent = last.Agent
	}
	if unread(SubjectDocker) && now.Docker.Version == "" {
		out.Docker = last.Docker
		out.Docker.CDIFaults = now.Docker.CDIFaults // from files, which can be read without the engine
	}
	if unread(SubjectCDI) && last.Docker.Version != "" {
		out.Docker.CDI, out.Docker.CDIDevices = last.Docker.CDI, last.Docker.CDIDevices
	}
	return out
}
