package reconcile

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/host"
	"github.com/gpu-mode/kbnode/internal/plan"
)

// userTimeout bounds useradd and userdel, which wait for each other's locks.
const userTimeout = 60 * time.Second

// Users changes the users of a machine.
type Users interface {
	// Add makes a system user with its own group and no login.
	Add(ctx context.Context, u plan.User) error
	// Remove deletes a user and its group, but no file.
	Remove(ctx context.Context, name string) error
}

// SystemUsers are this machine's users, changed by useradd and userdel.
type SystemUsers struct{}

// Add implements Users.
func (SystemUsers) Add(ctx context.Context, u plan.User) error {
	group := []string{"--user-group"}
	if hasGroup(u.Name) { // left by an interrupted run
		group = []string{"--gid", u.Name}
	}
	args := append(group, "--system", "--no-create-home", "--home-dir", u.Home, "--shell", "/usr/sbin/nologin", u.Name)
	return runUsers(ctx, "useradd", args...)
}

// Remove implements Users.
func (SystemUsers) Remove(ctx context.Context, name string) error {
	if err := runUsers(ctx, "userdel", name); err != nil {
		return err
	}
	if hasGroup(name) { // userdel keeps it if login.defs says so
		return runUsers(ctx, "groupdel", name)
	}
	return nil
}

func hasGroup(name string) bool {
	groups, _ := host.Tree{Root: "/"}.Groups()
	return slices.ContainsFunc(groups, func(g host.Group) bool { return g.Name == name })
}

func runUsers(ctx context.Context, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, userTimeout)
	defer cancel()
	path, err := exec.LookPath(program)
	if err != nil { // sudo and cron may leave sbin out of PATH
		path = "/usr/sbin/" + program
	}
	out, err := exec.CommandContext(ctx, path, args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(out))
	}
	return nil
}
