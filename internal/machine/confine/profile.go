// Package confine keeps root in a job's container, which is the node's user 0, from what the
// node's one /sys and /proc have of other slots: by an AppArmor profile, or by a list of files
// to cover. It knows nothing about containers.
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

	"github.com/gpu-mode/kbnode/internal/machine/disk"
)

// loadDeadline bounds AppArmor's parser, which compiles the profile.
const loadDeadline = time.Minute

//go:embed job.apparmor
var profileText string

// JobProfile returns the AppArmor profile of the jobs' containers. Its name contains a hash of
// its rules, so one that an older kbnode loaded is not taken for it.
var JobProfile = sync.OnceValues(func() (name, text string) {
	name = fmt.Sprintf("kbnode-job-%x", sha256.Sum256([]byte(profileText)))[:len("kbnode-job-")+8]
	return name, strings.Replace(profileText, "profile kbnode-job ", "profile "+name+" ", 1)
})

// parser compiles and loads profiles.
const parser = "/sbin/apparmor_parser"

// Kernel knows and loads AppArmor's profiles.
type Kernel struct {
	list string // the file that lists the loaded profiles
	load func(ctx context.Context, text string) error
	mu   sync.Mutex
}

// NewKernel returns the running kernel.
func NewKernel() *Kernel {
	return &Kernel{list: "/sys/kernel/security/apparmor/profiles", load: load}
}

// EngineConfines reports whether Docker confines containers by AppArmor. Docker lists AppArmor
// wherever the kernel has it (moby's pkg/sysinfo), but uses it only if AppArmor's parser was
// there when it started, and loads its own profile then (moby's daemon/apparmor_default.go).
// Otherwise it takes the name of a profile and ignores it.
func (k *Kernel) EngineConfines() bool {
	ok, err := k.has("docker-default")
	return ok && err == nil
}

// has reports whether the kernel has a profile and enforces it.
func (k *Kernel) has(name string) (bool, error) {
	list, err := os.ReadFile(k.list)
	return bytes.Contains(append([]byte("\n"), list...), []byte("\n"+name+" (enforce)\n")), err
}

// Ensure loads the profile of jobs unless the kernel has it, and returns its name. The error
// says why the kernel lacks it.
func (k *Kernel) Ensure(ctx context.Context) (name string, err error) {
	name, text := JobProfile()
	k.mu.Lock()
	defer k.mu.Unlock()
	ok, err := k.has(name)
	if !ok && err == nil {
		if err = k.load(ctx, text); err == nil {
			ok, err = k.has(name)
		}
	}
	if err == nil && !ok {
		err = errors.New("the kernel does not list it after loading")
	}
	if err != nil {
		return "", fmt.Errorf("load AppArmor profile %s: %w", name, err)
	}
	return name, nil
}

// load gives the profile to the kernel, as the engine does with its own. It runs on the host
// because the sandbox of a job's process cannot write to /sys.
func load(ctx context.Context, text string) error {
	ctx, cancel := context.WithTimeout(ctx, loadDeadline)
	defer cancel()
	return disk.OnHost(func() error {
		cmd := exec.CommandContext(ctx, parser, "-Kr")
		cmd.Stdin = strings.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("apparmor_parser: %w: %.500s", err, bytes.TrimSpace(out))
		}
		return nil
	})
}
