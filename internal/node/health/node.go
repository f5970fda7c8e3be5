package health

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

const (
	dockerAfter = time.Minute      // a restart of the engine takes seconds
	clockAfter  = 10 * time.Minute // NTP takes minutes after a boot

	overdueAfter = time.Minute // a disk may be slow

	nvmlAfter   = 2 * time.Minute // one probe has 20 s
	silentAfter = 5 * time.Minute // a driver that is reset or loaded answers before that
)

func ofNode(check, detail string) key { return key{Check: check, Slot: -1, Detail: detail} }

// node judges one reading of the node.
func (j *judge) node() {
	n := j.in.Node
	known := map[string]bool{}
	for _, what := range n.Unread {
		known[what] = true // unchanged
	}
	for _, d := range n.Disks {
		known[d.Path] = true
		low, none := min(d.TotalBytes/10, 20<<30), min(d.TotalBytes/50, 1<<30)
		k := ofNode(checkDisk, d.Path)
		if m := j.find(k); m != nil { // more must be free again than was missing before
			low += low / 2
			if m.Level == Fatal {
				none += none / 2
			}
		}
		m := Mark{
			Level:  Warn,
			Reason: fmt.Sprintf("less than %d MiB are free at %s", low>>20, d.Path), // without a number that changes all the time
			Fix:    "sudo docker system df; sudo du -xsh " + strings.TrimSuffix(d.Path, "/") + "/*",
		}
		if d.FreeBytes < none {
			m.Level, m.Effect, m.Reason = Fatal, Drain, fmt.Sprintf("less than %d MiB are free at %s", none>>20, d.Path)
		}
		j.update(k, d.FreeBytes < low, m)
	}
	j.clear("it is no longer checked", func(m Mark) bool { return m.Check == checkDisk && !known[m.Detail] })
	if !known[CheckDocker] {
		j.update(ofNode(CheckDocker, ""), n.Docker != "", Mark{
			Level: Fatal, Effect: Drain, After: dockerAfter,
			Reason: "the Docker engine does not answer: " + n.Docker, Fix: "systemctl status docker; sudo journalctl -u docker -n 50",
		})
	}
	j.update(ofNode(checkOverdue, ""), len(n.Overdue) > 0, Mark{
		Level: Warn, After: overdueAfter,
		Reason: "reads do not return: " + strings.Join(n.Overdue, ", "), Fix: "sudo dmesg, for the device or file system that hangs",
	})
	j.update(ofNode(checkOverdue, "gpus"), slices.Contains(n.Overdue, ReadGPUs), Mark{
		Level: Fatal, Effect: Drain, After: silentAfter,
		Reason: "the driver of the GPUs has not answered for minutes, so jobs would run on GPUs that no one checks", Fix: fixReboot,
	})
	if n.Clock != ClockUnknown {
		j.update(ofNode(checkClock, ""), n.Clock == ClockAdrift, Mark{
			Level: Warn, After: clockAfter,
			Reason: "nothing synchronizes the clock", Fix: "sudo timedatectl set-ntp true",
		})
	}
	if !known[CheckUnit] {
		j.update(ofNode(CheckUnit, ""), len(n.Down) > 0, Mark{
			Level: Warn, After: time.Minute,
			Reason: "services are down: " + strings.Join(n.Down, ", "), Fix: "sudo systemctl start " + strings.Join(n.Down, " "),
		})
	}
	if nv := j.in.GPUs; !known[CheckDriver] && nv != nil && nv.NVIDIA != nil && nv.NVIDIA.DriverVersion != "" {
		loaded := nv.NVIDIA.DriverVersion
		j.update(ofNode(CheckDriver, "cdi"), n.CDIDriver != "" && n.CDIDriver != loaded, Mark{
			Level: Fatal, Effect: Park, After: time.Minute,
			Reason: fmt.Sprintf("driver %s is loaded, but Docker gives containers the files of %s", loaded, n.CDIDriver),
			Fix:    "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml",
		})
	}
}

// driver judges what NVML reports about itself.
func (j *judge) driver() {
	nv := j.in.GPUs.NVIDIA
	if nv == nil {
		return
	}
	j.update(ofNode(CheckDriver, "mismatch"), nv.NVMLCode == nvml.CodeMismatch, Mark{
		Level: Fatal, Effect: Park,
		Reason: "the NVIDIA driver was upgraded while the old kernel module is loaded",
		Fix:    fixReboot,
	})
	k := ofNode(checkNVML, "")
	m := Mark{
		Level: Warn, After: nvmlAfter,
		Reason: "NVML does not answer, so less is known about the GPUs: " + nv.NVMLError,
		Fix:    "nvidia-smi; if it hangs, see dmesg for the GPU that hangs",
	}
	// No answer, and not one that less is known from: no one would look at the GPUs between jobs.
	silent := nv.NVMLCode == 0
	if old := j.find(k); silent && old != nil && (old.Effect == Drain || j.in.Up-old.First >= silentAfter) {
		m.Level, m.Effect = Fatal, Drain
		m.Reason = "NVML has not answered for minutes, so jobs would run on GPUs that no one checks: " + nv.NVMLError
		m.Fix = "nvidia-smi; if it hangs, " + fixReboot
	}
	j.update(k, nv.NVMLError != "" && nv.NVMLCode != nvml.CodeMismatch, m)
}
