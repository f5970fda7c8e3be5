package reconcile

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// userTimeout bounds useradd and userdel, which wait for each other's locks.
const userTimeout = 60 * time.Second

// UserState is a system user and its group.
type UserState struct {
	Name string `json:"name"`
	UID  int    `json:"uid"`
	GID  int    `json:"gid"`
}

// Users changes the users of a machine.
type Users interface {
	// Add makes a system user with its own group and no login.
	Add(ctx context.Context, u plan.User) error
	// Remove deletes a user and its group, but no file.
	Remove(ctx context.Context, name string) error
}

// SystemUsers are this machine's users, changed by useradd and userdel.
type SystemUsers struct{}

// ReadUsers reads a tree's /etc/passwd: users by name. A tree without one has none.
func ReadUsers(root string) (map[string]UserState, error) {
	data, err := readSmall((&Host{Root: root}).path("/etc/passwd"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("read users: %w", err)
	}
	users := map[string]UserState{}
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 {
			continue
		}
		uid, errU := strconv.Atoi(f[2])
		gid, errG := strconv.Atoi(f[3])
		if errU == nil && errG == nil {
			users[f[0]] = UserState{Name: f[0], UID: uid, GID: gid}
		}
	}
	return users, nil
}

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
	data, err := readSmall("/etc/group")
	return err == nil && bytes.Contains(append([]byte("\n"), data...), []byte("\n"+name+":"))
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
