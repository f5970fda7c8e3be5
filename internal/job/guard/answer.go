package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/machine/docker"
	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// The status of the engine's answer does not tell a job's mistake from the node's fault: an unknown user is 500, and a
// driver of GPUs that is not there is 400. Its words do. Sources, of Docker 20.10 to 29: moby's daemon/start.go,
// daemon/errors.go and daemon/oci_linux.go; runc's libcontainer (rootfs_linux.go, init_linux.go, standard_init_linux.go).

// What the kernel says of a path that a job, its checkout or its image chose. Whatever else it says, such as that a disk
// is full or memory is short, is not the job's mistake: nor that root may not do something, which is up to SELinux.
const (
	badPath = `not a directory|is a directory|too many levels of symbolic links|too many links|file name too long|file exists`
	badUse  = badPath + `|no such file or directory|read-only file system|invalid argument`
	badExec = badUse + `|executable file not found in \$PATH|permission denied|exec format error|argument list too long`
)

var (
	noAccount  = lazy.Regexp(`(?i)unable to find (user|group) (\S{1,256}): no matching entries`)
	noProgram  = lazy.Regexp(`exec(?:: ".*"| \S+): .*?(` + badExec + `)`)
	noPlace    = lazy.Regexp(`mounting "[^"]*" to rootfs(?: "[^"]*")? at "([^"]*)".*(` + badUse + `)`)
	noRoom     = lazy.Regexp(`mounting "[^"]*" to rootfs(?: "[^"]*")? at "([^"]*)".*no space left on device`)
	noWorkdir  = lazy.Regexp(`(?i)(?:chdir to cwd |container init: mkdir(?:at)? /).*(` + badExec + `)|current working directory is (outside)`)
	noWorkdirs = lazy.Regexp(`(?i)cannot mkdir: .*(` + badPath + `)|(?:lstat|stat|mkdir|mkdirat|readlink|openat2?|evalSymlinksInScope:?) .*(` + badPath + `)`)
	// notTheJobs are answers with the status of a mistake about what the slot decides.
	notTheJobs = lazy.Regexp(`(?i)device|bind source path|requested (cpus|memory nodes)|cgroup|runtime|log (driver|opt)|logging|cdi\b|kernel|seccomp|apparmor|container name`)
	nodePath   = lazy.Regexp(`/[^\s"':;,()]*`)
)

// answered turns what the engine answers into a refusal if the job, its checkout or its image must change, and else
// into the node's fault. making is true before there is a container. No path of the node gets into the job's log.
func (g *guard) answered(err error, s *job.Spec, wanted *container.CreateRequest, making bool) error {
	if errors.Is(err, docker.ErrTooLarge) {
		return forbid("%s", text.Line(err.Error(), 500))
	}
	if !errors.Is(err, docker.ErrInvalid) && !errors.Is(err, docker.ErrFault) {
		return err
	}
	g.log.Info("engine refused a job", "err", err)
	own := jobPaths(wanted)
	said := strings.ReplaceAll(err.Error(), `\"`, `"`)
	if why := mistake(said, s, wanted, own, making); why != "" {
		return forbid("%s", text.Line(why, 500))
	}
	line := nodePath().ReplaceAllStringFunc(text.Line(said, 2000), func(p string) string {
		if p == "/" || slices.Contains(own, p) {
			return p
		}
		return "…"
	})
	if _, reason, ok := strings.Cut(line, "daemon: "); ok {
		line = reason
	}
	if making && errors.Is(err, docker.ErrInvalid) && !notTheJobs().MatchString(said) {
		return forbid("the Docker engine says: %s", text.Line(line, 500))
	}
	return errors.New(text.Line(line, 500))
}

// jobPaths are the paths in the container at which the request mounts, or from which it starts.
func jobPaths(wanted *container.CreateRequest) []string {
	paths := append(slices.Concat(wanted.Entrypoint, wanted.Cmd), "")[:1] // the program
	paths = append(append(paths, wanted.WorkingDir), slices.Collect(maps.Keys(wanted.HostConfig.Tmpfs))...)
	for _, m := range wanted.HostConfig.Mounts {
		paths = append(paths, m.Target)
	}
	return paths
}

// mistake returns what the job's author must change; "" if that is not known to be the cause.
func mistake(said string, s *job.Spec, wanted *container.CreateRequest, own []string, making bool) string {
	limited := func(names ...string) bool {
		return slices.ContainsFunc(s.Ulimits, func(u job.Ulimit) bool { return slices.Contains(names, u.Name) })
	}
	account, program, place, dir := noAccount().FindStringSubmatch(said), noProgram().FindStringSubmatch(said), noPlace().FindStringSubmatch(said), noWorkdir().FindStringSubmatch(said)
	room := noRoom().FindStringSubmatch(said)
	if dir == nil && making {
		dir = noWorkdirs().FindStringSubmatch(said)
	}
	switch {
	case account != nil:
		kind, name, file := strings.ToLower(account[1]), account[2], "passwd"
		field := "user"
		if kind == "group" {
			file = "group"
			if slices.Contains(s.Groups, name) {
				field = "additional-groups"
			}
		}
		return fmt.Sprintf("%s: the image's /etc/%s has no %s %.64q; write a number, or a name that is there", field, file, kind, name)
	case strings.Contains(said, "uids and gids must be in range"):
		return fmt.Sprintf("user: the image's accounts have IDs out of range; write a number from %d to %d", job.FirstID, job.LastID)
	case strings.Contains(said, "invalid tmpfs option"):
		return "tmpfs: Docker does not take its options; write some such as size=1g,mode=1777"
	case place != nil && (slices.Contains(own[1:], path.Clean(place[1])) || covers(s, path.Clean(place[1])) && !strings.HasPrefix(place[2], "no such file")):
		return fmt.Sprintf("volumes, tmpfs: nothing can be mounted at %.100q of this image (%s); choose a place where it has a directory for a directory, a file for a file, or nothing", place[1], place[2])
	case place != nil && path.Dir(place[1]) == "/etc" && slices.Contains(etcFiles, path.Base(place[1])):
		return fmt.Sprintf("image: Docker cannot mount its %.100q (%s); have a file there, or nothing", place[1], place[2])
	case place != nil: // what the engine adds, as for GPUs
		return ""
	case room != nil && slices.ContainsFunc(s.Tmpfs, func(t job.Tmpfs) bool { return isBelow(path.Clean(room[1]), t.Target) }):
		return fmt.Sprintf("tmpfs: there is no room to mount %.100q in one; write a larger size and more inodes, or choose another place", room[1])
	case strings.Contains(said, "setting rlimit") && len(s.Ulimits) > 0:
		return "ulimits: the node's kernel does not allow one of them; write lower ones, or leave them out"
	case strings.Contains(said, "too many open files") && limited("nofile"), strings.Contains(said, "cannot start a stopped process") && limited("cpu"),
		strings.Contains(said, "cannot allocate memory") && limited("data", "as", "stack", "memlock", "rss"),
		strings.Contains(said, "resource temporarily unavailable") && limited("nproc"), strings.Contains(said, "file too large") && limited("fsize"):
		return "ulimits: no container can start with such a limit; write a higher one, or leave it out"
	case s.Memory > 0 && (strings.Contains(said, "OOM-killed") || s.Memory < leastMemory && strings.Contains(said, "OCI runtime create failed")):
		return fmt.Sprintf("memory: no container can start with %d bytes; write more, such as 1g, or leave it out", s.Memory)
	case dir != nil:
		return fmt.Sprintf("workdir: no command can start in %.100q (%s); write a directory that the user of the container may enter", cmp.Or(wanted.WorkingDir, "the image's"), cmp.Or(dir[1:]...))
	case program != nil && s.Kind != job.KindNode && !strings.Contains(said, "docker-init"):
		return fmt.Sprintf("command: %.100q cannot run in this image (%s); write a program that it has and that the user of the container may run", cmp.Or(own[0], "the image's own"), program[1])
	}
	return ""
}

// exitRunc is the exit status of runc where it could not become the command: the node's, to pipelines. exitUnrunnable is a
// shell's for such a command.
const exitRunc, exitUnrunnable = 255, 126

// runcSays is all that a container wrote whose command could not run: a program without its loader, or a script without
// an interpreter or of another architecture. Since 1.2, runc ends with 255 then, and before with 1.
var runcSays = lazy.Regexp(`^exec \S+: (` + badExec + `)\s*$`)

// tellUnrunnable gives a job the status of a command that cannot run, if its container ended because of that. Docker's init
// does so itself.
func (g *guard) tellUnrunnable(s *job.Spec, id string, o *slot.Outcome) {
	if o.ExitCode != exitRunc || s.Init || o.NodeFault != "" || o.Canceled {
		return
	}
	out, err := g.api.Follow(context.Background(), id, s.TTY, logTime)
	if err != nil {
		return
	}
	defer time.AfterFunc(logTime, out.Close).Stop()
	defer out.Close()
	said := &head{most: 2 * answerMost}
	_ = out.Copy(said, said) // what was read so far says enough
	if why := runcSays().FindSubmatch(said.text); why != nil {
		o.ExitCode = exitUnrunnable
		o.Reason = fmt.Sprintf("the command cannot run in this image (%s); its program, its script's interpreter or its loader is missing, or for another architecture", why[1])
	}
}

// logTime bounds a read of a container's log.
const logTime = time.Second

// answerMost bounds what is read of an answer, in bytes.
const answerMost = 4 << 10

// head keeps the beginning of what is written to it.
type head struct {
	text []byte
	most int
}

func (h *head) Write(p []byte) (int, error) {
	if len(h.text)+len(p) > h.most {
		return 0, io.ErrShortWrite
	}
	h.text = append(h.text, p...)
	return len(p), nil
}

// covers reports whether a job mounts over what contains a path, as over that of a driver's library.
func covers(s *job.Spec, target string) bool {
	below := func(dir string) bool { return strings.HasPrefix(target, dir+"/") }
	return slices.ContainsFunc(s.Mounts, func(m job.Mount) bool { return below(m.Target) }) || slices.ContainsFunc(s.Tmpfs, func(t job.Tmpfs) bool { return below(t.Target) })
}

// leastMemory is enough for any container to start, in bytes. Docker takes less, and runc may then be killed in many ways.
const leastMemory = 64 << 20

// foreign returns why an image of this processor's architecture cannot run here; "" if it can, or may. The engine only
// warns, and what cannot run then ends with 255 or 1, as if the node or the command had failed.
func foreign(image, arch string) string {
	others := slices.Contains([]string{"amd64", "arm64", "ppc64le", "s390x", "riscv64", "loong64", "mips64le"}, arch)
	if !others || arch == runtime.GOARCH {
		return ""
	}
	return fmt.Sprintf("image %.120q is for %s, and this node is %s; push one for linux/%s", image, arch, runtime.GOARCH, runtime.GOARCH)
}
