// Package hook runs the site's own programs around the jobs of a slot, as root: a prolog before a job's container is made, and
// an epilog after it was removed. They get nothing of a job.
package hook

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// The names of the hooks.
const (
	Prolog = "prolog"
	Epilog = "epilog"
)

// Names are all of them, in the order in which they run.
var Names = []string{Prolog, Epilog}

// File returns a hook of a slot by its name; "" if the site has none.
func File(p plan.JobPolicy, name string) string {
	switch {
	case p.Hooks == nil:
		return ""
	case name == Prolog:
		return p.Hooks.Prolog
	case name == Epilog:
		return p.Hooks.Epilog
	}
	return ""
}

// Environ returns all variables of a hook. Lists are separated by commas, in the order of the slot's GPUs.
func Environ(p plan.JobPolicy, name string) []string {
	var gpus, addresses, instances []string
	add := func(list []string, value string) []string { // the parts of a GPU share its names
		if value == "" || slices.Contains(list, value) {
			return list
		}
		return append(list, value)
	}
	for _, g := range p.GPUs {
		gpus, addresses, instances = add(gpus, g.UUID), add(addresses, g.PCI), add(instances, g.Instance)
	}
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"LC_ALL=C.UTF-8",
		"KBNODE_HOOK=" + name,
		"KBNODE_NODE=" + p.Hooks.Node,
		"KBNODE_SLOT=" + strconv.Itoa(p.Slot),
		"KBNODE_SLOT_NAME=" + p.Name,
		"KBNODE_CPUS=" + p.CPUs,
		"KBNODE_GPUS=" + strings.Join(gpus, ","),
		"KBNODE_GPU_PCI=" + strings.Join(addresses, ","),
		"KBNODE_GPU_INSTANCES=" + strings.Join(instances, ","),
	}
}

// Exec replaces this process with a hook of a slot: with the very file that was checked. It returns only an error, or nil if the
// site has no such hook.
func Exec(p plan.JobPolicy, name string) error {
	file := File(p, name)
	if file == "" { // the configuration has changed
		return nil
	}
	f, err := Open("/", file)
	if err != nil {
		return err
	}
	return execFile(f, Environ(p, name))
}

func execFile(f *os.File, env []string) error {
	if err := os.Chdir("/"); err != nil {
		return err
	}
	// The interpreter of a script opens it by this descriptor.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("keep %s open: %w", f.Name(), err)
	}
	err := unix.Exec(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), []string{f.Name()}, env)
	switch {
	case errors.Is(err, unix.ENOEXEC):
		return fmt.Errorf("%s is not a program; begin a script with a line such as #!/bin/sh", f.Name())
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("the interpreter or loader that %s names is missing; install it, or name another", f.Name())
	}
	return fmt.Errorf("execute %s: %w", f.Name(), err)
}
