package guard

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/moby/moby/api/types/mount"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// anything matches any text; what is allowed depends on the kind of mount.
var anything = lazily(`.`)

// tmpfsForm accepts the options that shape a tmpfs and nothing that another file system would
// understand.
var tmpfsForm = lazily(`^(rw|ro|exec|noexec|suid|nosuid|dev|nodev|sync|async|noatime|(size|nr_inodes)=[0-9]{1,15}[kKmMgG%]?|mode=[0-7]{1,4}|(uid|gid)=[0-9]{1,10})$`)

// bind returns a mount of a host path. A Mount has no colons to misread, and the engine makes no
// directory if the source is missing.
func bind(source, target string, readOnly bool) mount.Mount {
	return mount.Mount{
		Type: mount.TypeBind, Source: source, Target: target, ReadOnly: readOnly,
		BindOptions: &mount.BindOptions{Propagation: mount.PropagationRPrivate},
	}
}

// addBind judges one mount of a host path. It leaves out the agent's job API socket, which a job
// must not have, and kbnode itself, which a job already has.
func (b *builder) addBind(source, target string, readOnly bool) error {
	if !filepath.IsAbs(source) {
		return fmt.Errorf("%.80q: a job cannot have volumes; mount a directory of the checkout by its absolute path", source)
	}
	if slices.Contains(strings.Split(source, "/"), "..") {
		return fmt.Errorf("%.80q: the path must not contain .. elements; write it without them", source)
	}
	source = filepath.Clean(source)
	if source == b.jobAPI || (strings.Contains(source, "/job-api/") && strings.HasSuffix(source, ".sock")) {
		return nil
	}
	target, err := mountTarget(target)
	if err != nil {
		return err
	}
	if target == plan.ContainerBinary || target == b.policy.Binary {
		if source == b.policy.Binary || source == b.policy.Program() {
			return nil
		}
		return fmt.Errorf("%s: kbnode is mounted there; choose another target", target)
	}
	if source == b.policy.Binary {
		b.mounts = append(b.mounts, bind(b.policy.Program(), target, true))
		return nil
	}
	if isOldCache(source) {
		b.mounts = append(b.mounts, cacheMount(source, target, readOnly))
		return nil
	}
	// The docker plugin's option mount-buildkite-agent: the program, without a token.
	if filepath.Base(source) == "buildkite-agent" && !strings.HasPrefix(source, b.policy.WorkRoot+"/") {
		b.mounts = append(b.mounts, bind(plan.AgentCopy, target, true))
		return nil
	}
	resolved, err := b.facts.resolve(source)
	if err != nil {
		return err
	}
	b.mounts = append(b.mounts, bind(resolved, target, readOnly))
	return nil
}

// mountTarget returns target cleaned, or an error if a job may not mount there.
func mountTarget(target string) (string, error) {
	if !pathForm.MatchString(target) || len(target) > maxString || slices.Contains(strings.Split(target, "/"), "..") {
		return "", fmt.Errorf("%.80q: the target must be an absolute path and contain no .. elements; write one such as /work", target)
	}
	target = filepath.Clean(target)
	if kernel := below(target, "/proc", "/sys", "/dev"); kernel != "" && !strings.HasPrefix(target, "/dev/shm/") {
		if target == "/dev/shm" {
			return "", fmt.Errorf("%.80q: a job cannot mount over /dev; leave it out, and set shm-size (docker run --shm-size) for a larger one", target)
		}
		return "", fmt.Errorf("%.80q: a job cannot mount over %s; leave it out, nothing replaces it", target, kernel)
	}
	if target == "/" {
		return "", errors.New("a job cannot mount over the container's root; choose a directory in it, such as /work")
	}
	return target, nil
}

// takeBinds reads "source:target" with an optional ":mode".
func (b *builder) takeBinds(v any) error {
	list, err := stringList(v)
	if err != nil {
		return err
	}
	for _, spec := range list {
		parts := strings.Split(spec, ":")
		if len(parts) < 2 || len(parts) > 3 {
			return fmt.Errorf("%.80q is not source:target or source:target:mode; write one of them", spec)
		}
		readOnly := false
		for mode := range strings.SplitSeq(strings.Join(parts[2:], ""), ",") {
			switch mode {
			case "", "rw", "z", "Z", "cached", "delegated", "consistent", "private", "rprivate":
			case "ro":
				readOnly = true
			default:
				return fmt.Errorf(`%.80q: the mode must be "ro" or "rw"; write one of them`, spec)
			}
		}
		if err := b.addBind(parts[0], parts[1], readOnly); err != nil {
			return err
		}
	}
	return nil
}

// takeMounts reads the long form of mounts.
func (b *builder) takeMounts(v any) error {
	list, ok := v.([]any)
	if !ok && v != nil {
		return errors.New("not a list; write one")
	}
	for _, e := range list {
		if err := b.takeMount(e); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) takeMount(v any) error {
	var kind, source, target, propagation string
	var readOnly bool
	var size, mode int64
	err := judge(v, map[string]rule{
		"Type":        takeString(&kind, anything, "bind"),
		"Source":      takeString(&source, anything, "/path"),
		"Target":      takeString(&target, anything, "/work"),
		"ReadOnly":    takeBool(&readOnly),
		"Consistency": ignore, // for Docker Desktop
		"BindOptions": func(v any) error {
			return judge(v, map[string]rule{
				"Propagation":            takeString(&propagation, anything, "rprivate"),
				"NonRecursive":           ignore,
				"ReadOnlyNonRecursive":   ignore,
				"ReadOnlyForceRecursive": ignore,
				"CreateMountpoint":       ignore, // the source must exist
			})
		},
		"TmpfsOptions": func(v any) error {
			return judge(v, map[string]rule{
				"SizeBytes": func(v any) (err error) { size, err = number(v); return err },
				"Mode":      func(v any) (err error) { mode, err = number(v); return err },
			})
		},
	})
	switch {
	case err != nil:
		return err
	case kind == "bind" && slices.Contains([]string{"", "private", "rprivate"}, propagation):
		return b.addBind(source, target, readOnly)
	case kind == "bind":
		return fmt.Errorf("BindOptions.Propagation: %.20q would share mounts with the host; leave it out", propagation)
	case kind == "tmpfs":
		var opts []string
		if size > 0 {
			opts = append(opts, "size="+strconv.FormatInt(size, 10))
		}
		if mode > 0 {
			opts = append(opts, "mode="+strconv.FormatInt(mode&0o7777, 8))
		}
		if readOnly {
			opts = append(opts, "ro")
		}
		return b.addTmpfs(target, strings.Join(opts, ","))
	}
	return fmt.Errorf(`a job cannot use mounts of type %.20q; use "bind" or "tmpfs"`, kind)
}

func (b *builder) takeTmpfs(v any) error {
	m, err := stringMap(v)
	if err != nil {
		return err
	}
	for target, opts := range m {
		if err := b.addTmpfs(target, opts); err != nil {
			return err
		}
	}
	return nil
}

// addTmpfs needs no bound of its own: the contents count as the slot's memory.
func (b *builder) addTmpfs(target, opts string) error {
	target, err := mountTarget(target)
	if err != nil {
		return err
	}
	if opts != "" {
		for opt := range strings.SplitSeq(opts, ",") {
			if !tmpfsForm.MatchString(opt) {
				return fmt.Errorf("%.40q is not a tmpfs option that a job may set; leave it out, or write one such as size=1g, mode=1777, exec or ro", opt)
			}
		}
	}
	if b.host.Tmpfs == nil {
		b.host.Tmpfs = map[string]string{}
	}
	b.host.Tmpfs[target] = opts
	return nil
}

// resolver finds the real path of what a job wants mounted and refuses everything that is not
// below the work root, whatever links lead there. Every refusal is the same sentence, so that it
// does not reveal what the node has elsewhere.
func resolver(workRoot string) func(string) (string, error) {
	return func(path string) (string, error) {
		no := fmt.Errorf("%.80q: a job can mount only directories and files that exist below %s; copy it into the checkout or the image, or leave it out", path, workRoot)
		root, err := filepath.EvalSymlinks(workRoot)
		if err != nil {
			return "", no
		}
		resolved, err := filepath.EvalSymlinks(path)
		if err != nil || !strings.HasPrefix(resolved, root+"/") {
			return "", no
		}
		info, err := os.Lstat(resolved)
		if err != nil || (!info.IsDir() && !info.Mode().IsRegular()) {
			return "", no
		}
		return resolved, nil
	}
}

// nodeGroups returns the groups that own these device nodes, so that a container that does not
// run as root can open them.
func nodeGroups(nodes []string) []string {
	var gids []string
	for _, node := range nodes {
		info, err := os.Stat(node)
		if err != nil {
			continue // the engine says which node is missing
		}
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Gid != 0 {
			gids = append(gids, strconv.FormatUint(uint64(st.Gid), 10))
		}
	}
	slices.Sort(gids)
	return slices.Compact(gids)
}

// numbers returns the IDs of those groups that the node has: pipelines name video and render by
// number, since not every image has them.
func numbers(groups ...string) (ids []string) {
	for _, name := range groups {
		if g, err := user.LookupGroup(name); err == nil {
			ids = append(ids, g.Gid)
		}
	}
	return ids
}

func nodesPresent(nodes []string) []string {
	return slices.DeleteFunc(slices.Clone(nodes), func(node string) bool {
		_, err := os.Stat(node)
		return err != nil
	})
}

// linkNodes makes the links that udev makes for what the kernel announces, and that no one makes
// for NVIDIA's nodes: if /dev/char/195:5 is missing, Debian 12's runc does not tell systemd
// about the device, and the next daemon-reload takes it from the container.
func linkNodes(dir string, nodes []string) error {
	var errs []error
	for _, node := range nodes {
		info, err := os.Stat(node)
		if err != nil {
			continue // no container gets it
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || info.Mode()&os.ModeCharDevice == 0 {
			continue
		}
		link := filepath.Join(dir, fmt.Sprintf("%d:%d", unix.Major(st.Rdev), unix.Minor(st.Rdev)))
		if _, err := os.Stat(link); err == nil {
			continue
		}
		if err := ignoreAbsent(os.Remove(link)); err != nil { // it leads nowhere
			errs = append(errs, err)
		} else if err := os.Symlink(node, link); err != nil && !errors.Is(err, fs.ErrExist) { // by another guard
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
