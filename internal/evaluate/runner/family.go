package runner

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// onlyFamily reports whether this process shares its process table only with its parents and children, and with
// the other programs of its pipe, as in `kbnode runner | tee log`.
func onlyFamily() bool {
	family := slices.Concat(lineage(), descendants(), pipeline(group()))
	names, err := os.ReadDir("/proc")
	return err == nil && !slices.ContainsFunc(names, func(d fs.DirEntry) bool {
		pid, err := strconv.Atoi(d.Name())
		return err == nil && !slices.Contains(family, pid) && unix.Kill(pid, 0) != unix.ESRCH
	})
}

// group lists the other processes of this one's process group.
func group() (pids []int) {
	names, _ := os.ReadDir("/proc") // without it, nothing is known of others
	for _, d := range names {
		if pid, err := strconv.Atoi(d.Name()); err == nil && pid != os.Getpid() {
			if id, err := unix.Getpgid(pid); err == nil && id == unix.Getpgrp() {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// pipeline lists those of some processes that this one's output goes to, or its input comes from, through pipes.
func pipeline(pids []int) (joined []int) {
	to := func(from, to int) bool {
		in := pipeOf(to, 0)
		return in != "" && (pipeOf(from, 1) == in || pipeOf(from, 2) == in)
	}
	all := []int{os.Getpid()}
	for i := 0; i < len(all); i++ {
		for _, pid := range pids {
			if !slices.Contains(all, pid) && (to(all[i], pid) || to(pid, all[i])) {
				all = append(all, pid)
			}
		}
	}
	return all[1:]
}

// forming reports whether the process above this one, a shell, has forked another one that is still a copy of it: that
// may become a program of the same pipe.
func forming() bool {
	shell := os.Getppid()
	text, err := commandLine(shell)
	return err == nil && slices.ContainsFunc(group(), func(pid int) bool {
		parent, ok := parentOf(pid)
		other, err := commandLine(pid)
		return ok && parent == shell && err == nil && other == text
	})
}

func commandLine(pid int) (string, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
	return string(text), err
}

// pipeOf returns the name of the pipe behind a descriptor of a process; "" if it is none.
func pipeOf(pid, fd int) string {
	link, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(pid), "fd", strconv.Itoa(fd))) // unreadable: another's
	if strings.HasPrefix(link, "pipe:") {
		return link
	}
	return ""
}

// identity tells a file from another in its place.
type identity struct{ device, inode uint64 }

// openFiles returns the regular files that processes have open for writing, by path.
func openFiles(pids []int) map[string]identity {
	files := map[string]identity{}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		names, _ := os.ReadDir(filepath.Join(dir, "fd")) // it may have ended
		for _, n := range names {
			link := filepath.Join(dir, "fd", n.Name())
			path, err := os.Readlink(link)
			if err != nil || !filepath.IsAbs(path) || readsOnly(filepath.Join(dir, "fdinfo", n.Name())) {
				continue
			}
			if info, err := os.Stat(link); err == nil && info.Mode().IsRegular() {
				files[path] = identityOf(info)
			}
		}
	}
	return files
}

func identityOf(info fs.FileInfo) identity {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}
	}
	return identity{uint64(st.Dev), st.Ino} //nolint:unconvert // it has 32 bits on some machines
}

// isTheirs reports whether a file takes the log: the runner, or another program of the pipe, or one above, writes it.
// In the job's directory, it must have been there before, or a program could give its name to it.
func (e *engine) isTheirs(a *area, name string, info fs.FileInfo) bool {
	files := e.theirs
	if a.kind == jobArea {
		files = e.logs
	}
	file, has := files[name]
	return has && a.kind != foreignArea && info.Mode().IsRegular() && identityOf(info) == file
}

func (e *engine) isTheirFile(a *area, name string) bool {
	info, err := os.Lstat(name)
	return err == nil && e.isTheirs(a, name, info)
}
