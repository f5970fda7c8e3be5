package guard

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// scratch lists the work areas of a strict container. Each is a tmpfs that programs may run
// from, because kernel compilers put them there.
var scratch = []string{"/tmp", "/var/tmp", "/run"}

// scratchInodes bounds the number of files in each.
const scratchInodes = 1 << 20

// strict restricts what the compatible profile leaves to the pipeline. The user is the slot's,
// who owns the checkout, so that result.json can be written.
func (b *builder) strict() error {
	h := &b.host
	if b.facts.user == "" { // it would be root
		return errors.New("the slot's user is unknown; run kbnode reconcile on the node")
	}
	b.conf.User = b.facts.user
	h.GroupAdd = nil // gpu adds those of the GPU's nodes
	h.ReadonlyRootfs = true
	h.CapDrop = []string{"ALL"}
	size := strconv.FormatInt(b.policy.MemoryBytes/4, 10)
	if h.Tmpfs == nil {
		h.Tmpfs = map[string]string{}
	}
	for _, dir := range scratch {
		if slices.ContainsFunc(h.Mounts, func(m mount.Mount) bool { return m.Target == dir }) {
			continue // the checkout is there
		}
		h.Tmpfs[dir] = "rw,exec,nosuid,nodev,mode=1777,size=" + size + ",nr_inodes=" + strconv.Itoa(scratchInodes)
	}
	// The image has no name for the user, and Python's getpass.getuser, which torch uses to name
	// its caches, fails without one.
	b.conf.Env = append(b.conf.Env, "HOME=/tmp", "USER="+b.policy.User, "LOGNAME="+b.policy.User)
	return nil
}

// allowImage refuses an image that the node's configuration does not list. The name in the
// pipeline is what counts: a job cannot give an image another name.
func allowImage(p plan.JobPolicy, image string) error {
	if p.Images == nil {
		return nil
	}
	for _, name := range names(image) {
		for _, expr := range p.Images {
			if ok, err := regexp.MatchString(`^(?:`+expr+`)$`, name); err != nil {
				return fmt.Errorf("read job.allowed_images: %w", err)
			} else if ok {
				return nil
			}
		}
	}
	return fmt.Errorf("image %.120q is not among the images that this node runs; use one that job.allowed_images lists", image)
}

// names returns an image's name as written, as Docker shortens it, and with the tag that it has
// if none is written.
func names(image string) []string {
	list := []string{image}
	for _, hub := range []string{"docker.io/library/", "docker.io/", "index.docker.io/library/", "index.docker.io/"} {
		if short, ok := strings.CutPrefix(image, hub); ok && (strings.HasSuffix(hub, "library/") || strings.Contains(short, "/")) {
			list = append(list, short)
			break
		}
	}
	for _, name := range list {
		if last := name[strings.LastIndexByte(name, '/')+1:]; !strings.ContainsAny(last, ":@") {
			list = append(list, name+":latest")
		}
	}
	return list
}
