package noise

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Protection is what the node knows of what kept a job's programs apart. Everything is read on
// the node, and nothing from what runs in a container. What the runner made of it, only the
// runner could tell; docs/security.md says what follows from it.
type Protection struct {
	Kernel   string `json:"kernel,omitempty"`       // its release
	Landlock *int   `json:"landlock_abi,omitempty"` // of the kernel; 0 if it is off or not built in
	Seccomp  *bool  `json:"seccomp,omitempty"`      // the kernel has filters of system calls
	Ptrace   *int   `json:"ptrace_scope,omitempty"` // kernel.yama.ptrace_scope; absent without Yama
	// Containers are those of the job, in the order of their starts, each kind once.
	Containers []Container `json:"containers,omitempty"`
}

// Container is what the kernel said of the first process of a container just after its start.
// No other process can change that.
type Container struct {
	UID          *int   `json:"uid,omitempty"`               // effective, on the node; 0 is root
	Capabilities string `json:"capabilities,omitempty"`      // effective, a hexadecimal mask as in capabilities(7)
	NoNew        *bool  `json:"no_new_privileges,omitempty"` // no program of it gains any
	Seccomp      *bool  `json:"seccomp,omitempty"`           // a filter of system calls is in force
	PIDs         *bool  `json:"pid_namespace,omitempty"`     // it has its own
	Error        string `json:"error,omitempty"`             // why nothing is known
}

// NodeProtection reads what holds for all containers of the node.
func NodeProtection(proc string) Protection {
	p := Protection{Kernel: trimmed(filepath.Join(proc, "sys/kernel/osrelease")), Landlock: landlockABI()}
	if n, err := strconv.Atoi(trimmed(filepath.Join(proc, "sys/kernel/yama/ptrace_scope"))); err == nil {
		p.Ptrace = &n
	}
	switch _, err := os.Stat(filepath.Join(proc, "sys/kernel/seccomp/actions_avail")); {
	case err == nil:
		p.Seccomp = new(true)
	case errors.Is(err, os.ErrNotExist) && p.Kernel != "":
		p.Seccomp = new(false)
	}
	return p
}

// landlockABI returns nil if the kernel does not answer.
func landlockABI() *int {
	version, _, errno := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	switch errno {
	case 0:
		return new(int(version))
	case unix.ENOSYS, unix.EOPNOTSUPP: // not built in, or off
		return new(0)
	}
	return nil
}

// ReadContainer reads what protects a container from its cgroup's first process.
func ReadContainer(proc, cgroup string) Container {
	procs, err := os.ReadFile(filepath.Join(cgroup, "cgroup.procs"))
	if err != nil {
		return Container{Error: "it had ended"}
	}
	for pid := range strings.FieldsSeq(string(procs)) {
		if status, err := os.ReadFile(filepath.Join(proc, pid, "status")); err == nil {
			if c, first := parseStatus(string(status)); first {
				return c
			}
		}
	}
	return Container{Error: "its first process was not found"}
}

// parseStatus reads a process's status (proc_pid_status(5)). first reports whether the process
// is the first of a container's PID namespace.
func parseStatus(status string) (c Container, first bool) {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		f := strings.Fields(value)
		if len(f) == 0 {
			continue
		}
		switch key {
		case "Uid": // real, effective, saved, of files
			if n, err := strconv.Atoi(f[min(1, len(f)-1)]); err == nil {
				c.UID = &n
			}
		case "NSpid": // in each namespace, the node's first; deeper ones are of the container's making
			first = len(f) == 2 && f[1] == "1"
			c.PIDs = new(len(f) > 1)
		case "CapEff":
			c.Capabilities = f[0]
		case "NoNewPrivs":
			c.NoNew = new(f[0] == "1")
		case "Seccomp":
			c.Seccomp = new(f[0] == "2")
		}
	}
	return c, first
}
