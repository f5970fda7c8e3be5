package guard

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// The kernel counts many limits (pipes, inotify, keys, …) by user ID, and containers share the
// node's IDs: one that runs as the user of another slot or of a system service uses up theirs.
// What an image calls its users does not matter.
const (
	firstID   = 1000    // below are system accounts
	dynamicID = 61184   // systemd's dynamic users, up to nobodyID
	nobodyID  = 65535   // the 16-bit form of "none"; 65534 is the user "nobody"
	maxID     = 1 << 31 // the engine takes only smaller IDs
	usersGID  = 100     // "users", the group of the only user of many images
)

// mayBe checks "user", "user:group" or "", from a request or an image.
func (b *builder) mayBe(user string) error {
	uid, gid, _ := strings.Cut(user, ":")
	ownUID, ownGID, _ := strings.Cut(b.facts.user, ":")
	if !free(uid, ownUID) {
		return fmt.Errorf("%.64q is a system account or another slot's user; use root, a number from %d to 60000, or the slot's own user (propagate-uid-gid)", uid, firstID)
	}
	if !free(gid, ownGID, b.gpuGroups()...) {
		return noGroup(gid)
	}
	return nil
}

func noGroup(name string) error {
	return fmt.Errorf("%.64q is a system group or another slot's; use video, render, or a number from %d to 60000", name, firstID)
}

func (b *builder) gpuGroups() []string {
	nodes := slices.Clone(b.policy.DeviceNodes)
	for _, g := range b.policy.GPUs {
		nodes = append(nodes, g.Nodes...)
	}
	return slices.Concat(b.facts.gids(nodes), b.facts.named, []string{strconv.Itoa(usersGID)})
}

// free reports whether a job may have this ID. A name has a meaning only in the image, where
// root can become any user anyway.
func free(id, own string, also ...string) bool {
	if id == "" || id == own || slices.Contains(also, id) {
		return true
	}
	if strings.Trim(id, "0123456789") != "" {
		return !strings.HasPrefix(id, "kbnode-")
	}
	n, err := strconv.ParseInt(id, 10, 64)
	return err == nil && (n == 0 || n >= firstID && n < dynamicID || n > nobodyID && n < maxID)
}

// maxIDs bounds each file of users and ranges that is read, in bytes.
const maxIDs = 4 << 20

// span is a range of IDs.
type span struct{ from, count int64 }

// lentOut returns the IDs that the node below root has given to slots, to git, and to anyone for user
// namespaces.
func lentOut(root string) (users, groups []span, err error) {
	number := func(s string) int64 {
		if n, err := strconv.ParseInt(s, 10, 64); err == nil && n >= 0 && n < maxID<<1 {
			return n
		}
		return -maxID << 2 // a range with this start or count contains no ID
	}
	slots := strings.TrimSuffix(plan.UserName(0), "0")
	for name, take := range map[string]func(f []string){
		"passwd": func(f []string) {
			if (strings.HasPrefix(f[0], slots) || f[0] == plan.GitUser) && len(f) > 3 {
				users, groups = append(users, span{number(f[2]), 1}), append(groups, span{number(f[3]), 1})
			}
		},
		"subuid": func(f []string) { users = append(users, span{number(f[1]), number(f[2])}) },
		"subgid": func(f []string) { groups = append(groups, span{number(f[1]), number(f[2])}) },
	} {
		file, openErr := os.Open(filepath.Join(root, "etc", name))
		if errors.Is(openErr, fs.ErrNotExist) {
			continue
		}
		if openErr != nil {
			return nil, nil, fmt.Errorf("look up the node's users: %w", openErr)
		}
		lines := bufio.NewScanner(io.LimitReader(file, maxIDs))
		for lines.Scan() {
			if f := strings.Split(lines.Text(), ":"); len(f) > 2 {
				take(f)
			}
		}
		err = errors.Join(err, lines.Err(), file.Close())
	}
	return users, groups, err
}

// othersIDs refuses IDs that the node has given to others.
func (b *builder) othersIDs(root, user string, more []string) error {
	users, groups, err := lentOut(root)
	if err != nil {
		return err
	}
	uid, gid, _ := strings.Cut(user, ":")
	ownUID, ownGID, _ := strings.Cut(b.facts.user, ":")
	check := func(id, own string, lent []span) {
		n, notNumber := strconv.ParseInt(id, 10, 64)
		if notNumber == nil && id != own && slices.ContainsFunc(lent, func(s span) bool { return n >= s.from && n < s.from+s.count }) {
			err = fmt.Errorf("ID %s belongs to another slot or account on the node; use another number", id)
		}
	}
	check(uid, ownUID, users)
	for _, id := range append(slices.Clone(more), gid) {
		check(id, ownGID, groups)
	}
	return err
}
