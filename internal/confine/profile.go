// Package confine keeps root in a job's container, which is the node's user 0, from
// what the node's one /sys and /proc have of other slots: by an AppArmor profile,
// or by a list of files to cover. It knows no container.
package confine

import (
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed" // the profile
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/gpu-mode/kbnode/internal/disk"
)

// loadDeadline is for AppArmor's parser, which compiles the profile.
const loadDeadline = time.Minute

//go:embed job.apparmor
var profileText string

// JobProfile is the AppArmor profile of the jobs' containers. Its name says which
// rules it has: one that an older kbnode loaded is not taken for it.
var JobProfile = sync.OnceValues(func() (name, text string) {
	name = fmt.Sprintf("kbnode-job-%x", sha256.Sum256([]byte(profileText)))[:len("kbnode-job-")+8]
	return name, strings.Replace(profileText, "profile kbnode-job ", "profile "+name+" ", 1)
})

// Parser compiles and loads profiles. An engine on a machine without it confines no container
// by AppArmor, although it lists AppArmor among what the kernel has (containerd's
// pkg/apparmor, hostSupports; moby's pkg/sysinfo).
const Parser = "/sbin/apparmor_parser"

// Kernel is where AppArmor's profiles are.
type Kernel struct {
	list string // the file that names those that are loaded
	load func(ctx context.Context, text string) error
	mu   sync.Mutex
}

// NewKernel is the running one.
func NewKernel() *Kernel {
	return &Kernel{list: "/sys/kernel/security/apparmor/profiles", load: load}
}

// Ensure loads the profile of jobs unless the kernel has it, and returns its name.
// An error says why it has not.
func (k *Kernel) Ensure(ctx context.Context) (name string, err error) {
	name, text := JobProfile()
	k.mu.Lock()
	defer k.mu.Unlock()
	has := func() (bool, error) {
		list, err := os.ReadFile(k.list)
		return bytes.Contains(append([]byte("\n"), list...), []byte("\n"+name+" (enforce)\n")), err
	}
	ok, err := has()
	if !ok && err == nil {
		if err = k.load(ctx, text); err == nil {
			ok, err = has()
		}
	}
	if err == nil && !ok {
		err = errors.New("the kernel does not have it after it was loaded")
	}
	if err != nil {
		return "", fmt.Errorf("load AppArmor profile %s: %w", name, err)
	}
	return name, nil
}

// load gives the profile to the kernel, as the engine does with its own.
// The guard's sandbox has a /sys that cannot be written to.
func load(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, loadDeadline)
	defer cancel()
	return disk.OnHost(func() error {
		cmd := exec.CommandContext(ctx, Parser, "-Kr")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apparmor_parser: %w: %.500s", err, bytes.TrimSpace(out))
		}
		return nil
	})
}
