package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/gpu-mode/kbnode/internal/host"
	"github.com/gpu-mode/kbnode/internal/image"
	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/limit"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

const (
	maxCronFiles = 256 // per directory
	maxShown     = 80  // characters of a command
	// slotLabel is on the containers of jobs: what those run, their guard decides.
	slotLabel = "kbnode.slot"
)

// others looks for whatever else pulls or removes images.
type others struct {
	*Machine
	all    []Finding
	unread []Finding // what could not be read, so that nothing is known about it
}

func checkOthers(ctx context.Context, m *Machine) Answer {
	o := &others{Machine: m}
	o.cron()
	o.timers(ctx)
	o.services()
	o.containers(ctx)
	if all := append(o.all, o.unread...); len(all) > 0 {
		return found(all...)
	}
	return found(ok("none"))
}

func (o *others) unknown(what string, err error) {
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		o.unread = append(o.unread, skip("%s: not read: %s", what, lines(err)))
	}
}

func (o *others) cron() {
	find := func(name string, separate, whole bool) {
		crontab, err := o.Read(name)
		o.unknown(name, err)
		commands := []string{crontab}
		if separate {
			commands = strings.Split(crontab, "\n")
		}
		for _, command := range commands {
			what := o.work(command)
			if what == "" {
				continue
			}
			f := warn("%s runs %s", name, text.Line(what, maxShown))
			if whole {
				f = f.By("mv %s /root/", word(name))
			} else {
				f = f.Advise("remove the line from %s; image.auto_update does it when no job runs", name)
			}
			o.all = append(o.all, f)
			return
		}
	}
	for _, dir := range []string{"/etc/cron.d", "/etc/cron.hourly", "/etc/cron.daily", "/etc/cron.weekly", "/etc/cron.monthly", "/var/spool/cron", "/var/spool/cron/crontabs"} {
		entries, err := os.ReadDir(o.Path(dir))
		o.unknown(dir, err)
		for _, e := range entries[:min(len(entries), maxCronFiles)] {
			name := dir + "/" + e.Name()
			if _, _, mode := o.TargetOwner(name); mode.IsRegular() && name != plan.CronPath {
				find(name, dir == "/etc/cron.d" || strings.HasPrefix(dir, "/var/"), strings.HasPrefix(dir, "/etc/"))
			}
		}
	}
	find("/etc/crontab", true, false)
	find("/etc/anacrontab", true, false)
}

// work returns what a script does with images, also by the scripts that it calls.
func (o *others) work(script string) string { return image.Work(script, o.script) }

// script returns the text of a file if it is one for a shell.
func (o *others) script(name string) (text string, is bool) {
	if _, _, mode := o.TargetOwner(name); !mode.IsRegular() {
		return "", false
	}
	begin, err := limit.ReadFile(o.Path(name), 128)
	o.unknown(name, err)
	if !strings.HasSuffix(name, ".sh") && !shebang().Match(begin) {
		return "", false
	}
	text, err = o.Read(name)
	o.unknown(name, err)
	return text, true
}

var shebang = lazy.Regexp(`^#!\S*/(env\s+(-\S+\s+)*)?(sh|bash|dash|zsh|ksh)\b`)

// imageTimer matches the names of timers for such work, whatever program does it.
var imageTimer = lazy.Regexp(`(?i)(docker|podman|nerdctl|container|image).*(prune|pull|gc|clean|auto-?update)|(prune|pull|clean|update).*(docker|podman|nerdctl|container|image)|watchtower|ouroboros`)

func (o *others) timers(ctx context.Context) {
	units, err := o.Source.Units(ctx, "*.timer")
	if err != nil {
		o.unknown("the timers", err)
		return
	}
	for _, u := range units {
		if !u.Running() || u.Name == plan.ImageTimer {
			continue
		}
		service := strings.TrimSuffix(u.Name, ".timer") + ".service"
		timer, _ := o.unitLines(u.Name, "Unit=")
		if len(timer) > 0 {
			service = timer[len(timer)-1]
		}
		commands, read := o.unitLines(service, "Exec")
		what, engine := "", false
		for _, command := range commands {
			engine = engine || image.UsesEngine(command)
			if what == "" {
				what = o.work(command)
			}
		}
		switch name := text.Line(u.Name, maxShown); {
		case what != "":
			o.all = append(o.all, warn("%s runs %s", name, text.Line(what, maxShown)).By("systemctl disable --now %s", word(u.Name)))
		case imageTimer().MatchString(u.Name) && !engine:
			o.all = append(o.all, warn("%s runs, which by its name pulls or removes images", name).By("systemctl disable --now %s", word(u.Name)))
		case !read:
			o.unread = append(o.unread, skip("%s, which %s starts: not found", text.Line(service, maxShown), name))
		}
	}
}

// services looks at what runs now. What a service does before it runs, such as pulling its own
// image, disturbs no job until it is started again.
func (o *others) services() {
	for _, dir := range o.List(host.CgroupRoot + "/*.slice/*.service") {
		unit := path.Base(dir)
		commands, _ := o.unitLines(unit, "ExecStart=")
		for _, command := range commands {
			if what := o.work(command); what != "" {
				o.all = append(o.all, warn("%s runs %s", text.Line(unit, maxShown), text.Line(what, maxShown)).By("systemctl disable --now %s", word(unit)))
				break
			}
		}
	}
}

// unitLines returns the values of a unit's keys that begin with a text.
func (o *others) unitLines(unit, prefix string) (values []string, read bool) {
	values, read, err := o.UnitValues(unit, prefix)
	o.unknown(unit, err)
	return values, read
}

// shellFlag matches what is before a container's script. The engine joins a command's words by blanks.
var shellFlag = lazy.Regexp(`^\S*sh( -\w+)* -\w*c `)

func (o *others) containers(ctx context.Context) {
	running, err := o.Source.Running(ctx)
	o.unknown("Docker's containers", err)
	for _, c := range running {
		if c.Labels[slotLabel] != "" {
			continue
		}
		what := image.Work(shellFlag().ReplaceAllString(c.Command, ""), nil)
		if image.IsUpdater(c.Image) || image.IsUpdater(c.Name) || c.Labels["com.centurylinklabs.watchtower"] == "true" {
			what = c.Image
		}
		if what != "" {
			o.all = append(o.all, warn("container %s runs %s", text.Line(c.Name, maxShown), text.Line(what, maxShown)).
				By("docker update --restart=no %[1]s && docker stop %[1]s", word(c.Name)))
		}
	}
}
