//go:build vm

package vm_test

import (
	"archive/tar"
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// hostile has what runs on the node: the driver of the attacks.
//
//go:embed attack
var hostile embed.FS

// attack is one hostile job.
type attack struct {
	name   string
	script string // sh in the container; its marks are lines that begin with "::"
	bare   bool   // a step without the docker plugin
	image  string // busybox:test unless set
	option string // further options of the docker plugin, each after a comma
	rest   string // further lines of the step
	flags  string // of bkstub submit
	during string // what root does meanwhile, in the words of lane.sh

	code  string // "0" or "1" or "lost"; "" if it does not matter
	wants []string
	not   []string // may not be in the log or in what during said
	later bool     // cleaned up by what comes next, not at the end of the job itself
	check func(t *testing.T, m *vm.Machine, r outcome)
}

// outcome is what lane.sh left of an attack.
type outcome struct {
	build, code, log, said, left string
}

const (
	neighbour = 7 // the slot that does not attack
	// lanesIn bounds how long all jobs may take, emulated.
	lanesIn = 45 * time.Minute
)

func (a attack) steps(slot int) string {
	script := strings.ReplaceAll(a.script, "$", "$$")
	if a.bare {
		return fmt.Sprintf("steps:\n  - command: |\n      %s\n    agents: {queue: b200, gpu-index: \"%d\"}\n", strings.ReplaceAll(script, "\n", "\n      "), slot) + a.rest
	}
	image := cmp.Or(a.image, "busybox:test")
	if a.script == "" { // the plugin's own options say what runs
		return strings.Replace(step(slot, image, "X", a.option), "command: |\n      X", `command: ""`, 1) + a.rest
	}
	return step(slot, image, script, a.option) + a.rest
}

// marks are the lines that a job wrote on purpose.
func (r outcome) marks() []string {
	var marks []string
	for line := range strings.Lines(r.log) {
		if mark, ok := strings.CutPrefix(strings.TrimSpace(line), ":: "); ok {
			marks = append(marks, mark)
		}
	}
	return marks
}

// putScripts puts the scripts of the attacks on the node.
func putScripts(t *testing.T, m *vm.Machine) {
	t.Helper()
	entries, err := hostile.ReadDir("attack")
	must.Do(t, err)
	for _, e := range entries {
		text, err := hostile.ReadFile("attack/" + e.Name())
		must.Do(t, err)
		m.Put("/srv/attack/"+e.Name(), 0o755, string(text))
	}
}

// attackAll runs a lane of jobs on each slot, all slots at once.
func attackAll(t *testing.T, m *vm.Machine, lanes [][]attack) map[string]outcome {
	t.Helper()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	put := func(name, text string) {
		err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o600, Size: int64(len(text))})
		if err == nil {
			_, err = w.Write([]byte(text))
		}
		must.Do(t, err)
	}
	for slot, lane := range lanes {
		for i, a := range lane {
			file := a.file(slot, i)
			put(file+".yml", a.steps(slot))
			put(file+".flags", a.flags)
			put(file+".during", a.during)
		}
	}
	must.Do(t, w.Close())
	m.Put("/root/attack/jobs.tar", 0o600, archive.String())
	m.Sh("mkdir -p /root/attack; tar -xf /root/attack/jobs.tar -C /root/attack")
	for slot := range lanes {
		m.Start("bash", "/srv/attack/lane.sh", strconv.Itoa(slot))
	}
	// What there is at the deadline tells more than that it has passed.
	for deadline := time.Now().Add(m.Limit(lanesIn)); m.Try("pgrep -f /srv/attack/[l]ane.sh").Code == 0; time.Sleep(time.Second) {
		if time.Now().After(deadline) {
			t.Errorf("the jobs took more than %s", lanesIn)
			break
		}
	}
	// All of the files in one go: a name between NULs, then what is in it.
	files := map[string]string{}
	parts := strings.Split(m.Sh(`cd /root/attack; for f in */*; do printf '\0%s\0' "$f"; tr -d '\0' <"$f"; done`), "\x00")
	for i := 1; i+1 < len(parts); i += 2 {
		files[parts[i]] = parts[i+1]
	}
	all := map[string]outcome{}
	for slot, lane := range lanes {
		for i, a := range lane {
			text := func(kind string) string { return strings.TrimSpace(files[a.file(slot, i)+"."+kind]) }
			all[strconv.Itoa(slot)+" "+a.name] = outcome{
				build: text("build"), code: text("code"), log: timestamp.ReplaceAllString(text("log"), ""), said: text("said"), left: text("left"),
			}
		}
	}
	return all
}

// file is where lane.sh finds a job and leaves what came of it.
func (a attack) file(slot, i int) string {
	return fmt.Sprintf("%d/%02d-%s", slot, i, strings.NewReplacer(" ", "-", ",", "").Replace(a.name))
}

// judge looks at what came of one attack. That the slot serves afterward, the next job of its lane shows.
func (a attack) judge(t *testing.T, m *vm.Machine, r outcome) {
	if a.code != "" && r.code != a.code {
		t.Errorf("the job ended with %q, want %q", r.code, a.code)
	}
	for _, want := range a.wants {
		if !slices.ContainsFunc(r.marks(), func(s string) bool { return strings.HasPrefix(s, want) }) && !strings.Contains(r.said, want) && !strings.Contains(r.log, "kbnode: "+want) {
			t.Errorf("it did not say %q", want)
		}
	}
	for _, bad := range a.not {
		if slices.ContainsFunc(r.marks(), func(s string) bool { return strings.HasPrefix(s, bad) }) || strings.Contains(r.said, bad) {
			t.Errorf("it says %q", bad)
		}
	}
	if r.left != "" && !a.later {
		t.Errorf("it left\n%s", r.left)
	}
	if a.check != nil {
		a.check(t, m, r)
	}
	if t.Failed() {
		t.Logf("said: %s\nlog: %s", r.said, tail(r.log))
	}
}

func tail(s string) string { return s[max(0, len(s)-6000):] }

// TestAttack sends hostile jobs to slots of a node. Another runs a job
// that must not notice, and the node must be as it was.
func TestAttack(t *testing.T) {
	t.Parallel()
	m := installed(t)
	// The daemon's work takes as long as a job, emulated.
	m.Sh(`systemctl stop kbnode; printf 'job:\n  tasks_max: 256\n  disk: 512MiB\n  private_registries: ["127.0.0.1:5999"]\n' >>/etc/kbnode/config.yaml
		kbnode reconcile; bkstub wait-agents --count 8 --timeout 3m; systemctl stop kbnode`)
	lanes := attacks()
	putScripts(t, m)
	m.Sh("docker create --name export busybox:test true; docker export export | docker import -c 'VOLUME /data' - volume:test; docker rm export")
	m.Sh("mkdir -p /root/attack; bash /srv/attack/node.sh >/root/attack/node.before")

	m.Put("/root/attack/neighbour.yml", 0o600, attack{script: undisturbed}.steps(neighbour))
	build := m.Sh("bkstub submit --queue b200 --steps /root/attack/neighbour.yml")
	m.Wait("the neighbour", "find /var/lib/buildkite-agent/gpu-7/builds -name READY | grep -q .")

	all := attackAll(t, m, lanes)
	for slot, lane := range lanes {
		for _, a := range lane {
			t.Run(fmt.Sprintf("%d %s", slot, a.name), func(t *testing.T) { a.judge(t, m, all[strconv.Itoa(slot)+" "+a.name]) })
		}
	}
	t.Run("neighbour", func(t *testing.T) {
		m.Sh("touch $(find /var/lib/buildkite-agent/gpu-7/builds -name READY -printf %h)/stop")
		r := m.Try("bkstub wait --timeout 1m " + build)
		if o := (outcome{log: timestamp.ReplaceAllString(r.Stdout, "")}); r.Code != 0 || !slices.Contains(o.marks(), "untouched") {
			t.Errorf("exit %d\n%s%s", r.Code, o.log, r.Stderr)
		}
	})
	t.Run("node", func(t *testing.T) {
		if r := m.Try("bash /srv/attack/node.sh | diff /root/attack/node.before -"); r.Code != 0 {
			t.Errorf("it is not as it was: %s%s", r.Stdout, r.Stderr)
		}
	})
}
