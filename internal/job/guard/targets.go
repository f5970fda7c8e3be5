package guard

import (
	"cmp"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"

	"github.com/gpu-mode/kbnode/internal/job"
)

// place is where something is mounted, in all forms that links of the image give it.
type place struct {
	source string // on the node; "" for a tmpfs
	forms  []string
}

// checkTargets refuses a mount or a working directory that links of the image or of the checkout lead to where the
// job may not have it: runc follows them.
func (v *viewer) checkTargets(wanted *container.CreateRequest) error {
	var places []place
	add := func(source, target string) error {
		forms, err := v.forms(target)
		if err != nil {
			return err
		}
		for _, form := range forms[1:] {
			if _, err := job.MountTarget(form); err != nil {
				return forbid("%.80q leads to another place in the image: %s", target, err)
			}
		}
		for _, form := range forms {
			if slices.ContainsFunc(v.Accounts, func(file string) bool { return isBelow(file, form) }) {
				return forbid("%.80q: a job cannot mount over the image's accounts, which links of the image lead to; choose another place", target)
			}
		}
		places = append(places, place{source, forms})
		return nil
	}
	for _, m := range wanted.HostConfig.Mounts {
		source := m.Source
		if m.Type != mount.TypeBind {
			source = ""
		}
		if err := add(source, m.Target); err != nil {
			return err
		}
	}
	for target := range wanted.HostConfig.Tmpfs {
		if err := add("", target); err != nil {
			return err
		}
	}
	for target := range v.image.Volumes { // which the engine mounts where there is no disk for them
		target = path.Clean("/" + target)
		if slices.ContainsFunc(wanted.HostConfig.Mounts, func(m mount.Mount) bool { return m.Target == target }) {
			continue
		}
		if _, err := job.MountTarget(target); err != nil {
			return forbid("image %.120q declares a volume: %s", wanted.Image, err)
		}
		if err := add("", target); err != nil {
			return err
		}
	}
	engine, err := v.initForms(wanted, places)
	if err != nil {
		return err
	}
	dir := path.Clean("/" + cmp.Or(wanted.WorkingDir, v.image.WorkingDir))
	forms, err := v.forms(dir)
	if err != nil {
		return err
	}
	for _, form := range forms {
		if kernel := job.KernelDir(form); kernel != "" {
			return forbid("workdir: %.80q leads below %s in the image; choose another directory", dir, kernel)
		}
		for _, file := range slices.Concat(v.Accounts, engine) {
			if isBelow(form, file) { // the engine would make a directory there
				return forbid("workdir: %.80q is where a container has its file %.80q; choose another directory", dir, file)
			}
		}
	}
	for _, at := range append(places, place{forms: forms}) {
		for _, over := range places {
			if err := v.ctx.Err(); err != nil {
				return err
			}
			if over.source != "" && over.linksTo(at.forms) {
				return forbid("%.80q goes through a symbolic link in the checkout; write its target", at.forms[0])
			}
		}
	}
	return nil
}

// initForms returns the forms of the path at which the engine mounts its init, if the job has one. It refuses what keeps
// it from there, or hides it: the engine mounts it first.
func (v *viewer) initForms(wanted *container.CreateRequest, places []place) ([]string, error) {
	if wanted.HostConfig.Init == nil || !*wanted.HostConfig.Init {
		return nil, nil
	}
	forms, last, err := v.follow(job.InitPath)
	if err != nil {
		return nil, err
	}
	if last.Dir {
		return nil, forbid("the image has a directory at %s, where Docker mounts its init; remove it, or set init to false", job.InitPath)
	}
	for _, p := range places {
		for _, form := range p.forms {
			if slices.ContainsFunc(forms, func(file string) bool { return isBelow(file, form) }) {
				return nil, forbid("%.80q would hide Docker's init, %s; choose another place, or set init to false", p.forms[0], job.InitPath)
			}
		}
	}
	return forms, nil
}

// forms is follow for where something is mounted. In /dev is nothing of the image.
func (v *viewer) forms(target string) ([]string, error) {
	if job.KernelDir(path.Dir(target)) != "" || isBelow(target, "/dev") {
		return []string{target}, nil
	}
	forms, _, err := v.follow(target)
	return forms, err
}

// linksTo reports whether one of the paths goes through a link in what is mounted.
func (p place) linksTo(paths []string) bool {
	for _, form := range p.forms {
		form += "/"
		for _, to := range paths {
			below, inside := strings.CutPrefix(to, form)
			if !inside {
				continue
			}
			at := p.source
			for step := range strings.SplitSeq(below, "/") {
				at = filepath.Join(at, step)
				info, err := os.Lstat(at)
				if err != nil {
					break // nothing is below it
				}
				if info.Mode().Type() == fs.ModeSymlink {
					return true
				}
			}
		}
	}
	return false
}

// isBelow reports whether a path is a directory or in it.
func isBelow(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }
