package guard

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/job"
)

// setUser replaces the container's user and groups, or the image's, by the numbers that they are in the image, and
// checks those: to the kernel, only numbers count.
func (v *view) setUser(b *builder, wanted *container.CreateRequest, imageUser string) error {
	text := cmp.Or(wanted.User, imageUser, "0")
	if !job.UserForm().MatchString(text) {
		return fmt.Errorf("%.80q is not a user; write one such as 1000:1000", text)
	}
	name, group, explicit := strings.Cut(text, ":")
	uid, gid, account := number(name), "0", ""
	for f := range lines(v.Passwd, 4) {
		if f[0] == name && uid == "" || number(f[2]) == uid && uid != "" {
			uid, gid, account = number(f[2]), number(f[3]), f[0]
			break
		}
	}
	if uid == "" || gid == "" {
		return fmt.Errorf("the image has no user %.64q with numbers; write a number, such as 1000:1000", name)
	}
	var groups []string // that the image adds
	if explicit {
		gid = v.gid(group)
	}
	if gid == "" {
		return fmt.Errorf("the image has no group %.64q; write a number, such as 1000:1000", group)
	}
	user := uid + ":" + gid
	for f := range lines(v.Group, 4) {
		more := number(f[2])
		if explicit || account == "" || more == "" || len(groups) == maxGroups || !slices.Contains(strings.Split(f[3], ","), account) {
			continue
		}
		if b.checkUser("0", []string{more}) == nil { // else the user is in fewer groups
			groups = append(groups, more)
		}
	}
	for _, g := range wanted.HostConfig.GroupAdd {
		switch more := v.gid(g); {
		case g == "video" || g == "render": // the node's, which its devices have
			groups = append(groups, b.facts.named...)
		case more == "":
			return fmt.Errorf("the image has no group %.64q; write a number", g)
		default:
			groups = append(groups, more)
		}
	}
	slices.Sort(groups)
	groups = slices.Compact(groups)
	if err := b.checkUser(user, groups); err != nil {
		return fmt.Errorf("user %.80q is %s in the image: %w", text, user, err)
	}
	for f := range lines(v.Group, 1) {
		if same := len(f) > 2 && f[2] == f[0]; !same && (f[0] == gid || slices.Contains(groups, f[0])) {
			return fmt.Errorf("the image's /etc/group has a group with the name %.20q, which Docker takes for the number; remove it", f[0])
		}
	}
	wanted.User, wanted.HostConfig.GroupAdd = user, groups
	return nil
}

// maxGroups bounds the groups that an image adds to a user.
const maxGroups = 64

// gid returns the number of a group in the image; "" if it has none.
func (v *view) gid(name string) string {
	if n := number(name); n != "" {
		return n
	}
	for f := range lines(v.Group, 3) {
		if f[0] == name {
			return number(f[2])
		}
	}
	return ""
}

// number returns an ID in the one form that a number has; "" if it is none.
func number(id string) string {
	n, err := strconv.ParseUint(id, 10, 31)
	if err != nil {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// lines yields the fields of the lines of an account file that have as many.
func lines(text []byte, fields int) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		for line := range bytes.Lines(text) {
			if f := strings.Split(string(bytes.TrimSpace(line)), ":"); len(f) >= fields && !yield(f) {
				return
			}
		}
	}
}
