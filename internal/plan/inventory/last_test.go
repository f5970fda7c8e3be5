package inventory

import (
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestFill leaves each subject unread: it is taken whole from the last inventory, and no other.
func TestFill(t *testing.T) {
	t.Parallel()
	last := &Inventory{
		Hostname: "was", OS: OS{Virt: true}, CPU: CPU{Online: "0-7"}, Memory: Memory{TotalBytes: 7},
		Software: Software{
			Systemd: "255", CgroupV2: true, Cron: true, Git: "/was/git", MkfsExt4: "/was/mkfs", Toolkit: "/was/ctk",
			Docker: Docker{Version: "28", RootDir: "/was", CDI: true, CDIDevices: []string{"was"}, CDIFaults: map[string]CDIFault{"was": {}}},
			Agent:  Agent{Path: "/was/agent", Version: "3", Keys: []string{"was"}},
		},
		Disks: []DiskFree{{Path: "/a", TotalBytes: 1}, {Path: "/b", TotalBytes: 2}},
	}
	faults := map[string]CDIFault{"now": {}}
	for name, row := range map[string]struct {
		now    Inventory
		unread string
		want   func(*Inventory)
	}{
		"all is read":               {Inventory{}, "", func(*Inventory) {}},
		"the name":                  {Inventory{}, SubjectHost, func(i *Inventory) { i.Hostname = "was" }},
		"a name of its own":         {Inventory{Hostname: "now"}, "", func(*Inventory) {}},
		"none of its own yet":       {Inventory{Hostname: "localhost.localdomain"}, "", func(i *Inventory) { i.Hostname = "was" }},
		"CPUs":                      {Inventory{CPU: CPU{Online: "0"}}, SubjectCPU, func(i *Inventory) { i.CPU, i.Memory, i.OS.Virt = last.CPU, last.Memory, true }},
		"memory":                    {Inventory{Memory: Memory{TotalBytes: 1}}, SubjectMemory, func(i *Inventory) { i.CPU, i.Memory, i.OS.Virt = last.CPU, last.Memory, true }},
		"systemd":                   {Inventory{}, SubjectSystem, func(i *Inventory) { i.Software.Systemd = "255" }},
		"systemd, which answered":   {Inventory{Software: Software{Systemd: "257"}}, SubjectSystem, func(*Inventory) {}},
		"the engine":                {Inventory{Software: Software{Docker: Docker{CDIFaults: faults}}}, SubjectDocker, func(i *Inventory) { i.Software.Docker = last.Software.Docker; i.Software.Docker.CDIFaults = faults }},
		"CDI":                       {Inventory{Software: Software{Docker: Docker{Version: "29"}}}, SubjectCDI, func(i *Inventory) { i.Software.Docker.CDI, i.Software.Docker.CDIDevices = true, []string{"was"} }},
		"the agent":                 {Inventory{Software: Software{Agent: Agent{Path: "/now", Version: "4"}}}, SubjectAgent, func(i *Inventory) { i.Software.Agent = last.Software.Agent }},
		"no agent":                  {Inventory{}, SubjectAgent, func(*Inventory) {}},
		"an agent without version":  {Inventory{Software: Software{Agent: Agent{Path: "/now"}}}, "", func(i *Inventory) { i.Software.Agent = last.Software.Agent }},
		"one disk":                  {Inventory{Disks: []DiskFree{{Path: "/b", TotalBytes: 9}}}, DiskSubject("/a"), func(i *Inventory) { i.Disks = append(i.Disks, last.Disks[0]) }},
		"a disk that was read, too": {Inventory{Disks: []DiskFree{{Path: "/a", TotalBytes: 9}}}, DiskSubject("/a"), func(*Inventory) {}},
		"programs": {Inventory{Software: Software{Git: "/now/git"}}, SubjectFiles, func(i *Inventory) {
			i.Software = Software{CgroupV2: true, Cron: true, Git: "/now/git", MkfsExt4: "/was/mkfs", Toolkit: "/was/ctk", Agent: last.Software.Agent}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if row.unread != "" {
				row.now.Unread = []string{row.unread}
			}
			want := row.now
			row.want(&want)
			must.Equal(t, &want, row.now.Fill(last))
		})
	}
	unread := &Inventory{CPU: CPU{Online: "0"}, Software: Software{Agent: Agent{Path: "/now", Version: "4"}}, Unread: []string{SubjectCPU, SubjectAgent}}
	must.Equal(t, &Inventory{Unread: unread.Unread}, unread.Fill(nil))
}
