//go:build vm

package vm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// buildsIn bounds how long the hostile builds may take, about ten seconds each.
const buildsIn = 40 * time.Minute

// files lists what no build may add to or change on a node, once each slot has had a job.
const files = `set +e # what vanishes meanwhile is no fault
	find /etc /home /root /run/kbnode /tmp /usr/local /var/tmp -xdev \
	\( -path /root/attack -o -path '/root/steps-*' -o -path /root/acct -o -path '*/systemd-private-*' -o -path '/run/kbnode/gpu*/agent' -o -path '/run/kbnode/gpu*/mirrors' -o -path '/run/kbnode/gpu*/job.json' \) -prune -o -printf '%p %y %m %u %l\n' | sort
	find /etc -type f -exec cksum {} + | sort
	timeout 60 docker volume ls -q; timeout 60 docker network ls -q | sort`

// nodePrograms are what a job starts on the host. Git's shell is that of a repository in a directory, as
// on this machine. What root runs is compared with an ordinary job's, since containers run as root, too:
// further programs are those of this test and of the machine.
var nodePrograms = regexp.MustCompile(`^(kbnode-gpu[0-7] (buildkite-agent|kbnode)|kbnode-git (git\S*|sh)|root (split|jq|cat|ls|wc|sed|grep|perl|modprobe|cron|unix_chkpwd|run-parts|systemd.*|\(.*))$`)

// ended is how a hostile build ended.
type ended struct {
	Row int
	Job struct {
		State        string
		ExitStatus   *int   `json:"exit_status"`
		SignalReason string `json:"signal_reason"`
	}
	Log string
}

// TestHostileBuilds sends the node all that package job's tests know a build can try, and commits that
// would plant files where git checked them out. Nothing of them runs outside their containers, nothing is
// left behind, each log says why, and no slot is lost.
func TestHostileBuilds(t *testing.T) {
	t.Parallel()
	m := installed(t)
	m.Sh("systemctl stop kbnode") // which starts programs of its own
	putScripts(t, m)
	m.Sh("docker tag kernelbot-test:latest kernelbot:latest; bash /srv/attack/branches.sh")
	m.Sh(`mkdir /root/attack/held; cd /root/attack/held; docker create --name export busybox:test true; docker export export | tar -x; docker rm export
		mkdir -p held etc; rm -f etc/passwd; echo root:x:0:0::/:/bin/sh >held/passwd; ln -s /held/passwd etc/passwd; tar -c . | docker import - held:test`)
	m.Sh(account)
	for slot := range 8 {
		idle(t, m, slot)
	}
	ordinary := programs(m)
	m.Sh("bkstub wait-agents --count 8 --timeout 3m; (" + files + ") >/root/attack/files; " + account)

	rows, reach := []jobtest.Build{}, 0 // how many of them reach kbnode
	var lines strings.Builder
	for _, b := range jobtest.Hostile {
		if !b.Sendable() {
			continue
		}
		rows = append(rows, b)
		if b.Agent == "" {
			reach++
		}
		must.Do(t, json.NewEncoder(&lines).Encode(jobtest.Step(b.Vars)))
	}
	m.Put("/root/attack/builds/steps.yml", 0o600, "steps:\n  - command: \"true\"\n    agents: {queue: b200}\n")
	m.Put("/root/attack/builds/builds.jsonl", 0o600, lines.String())
	builds := m.Start("bash", "/srv/attack/builds.sh").WaitFor(buildsIn)
	if builds.Code != 0 {
		t.Fatalf("exit %d: %s", builds.Code, tail(builds.Stderr))
	}
	all := make([]ended, len(rows))
	for dec := json.NewDecoder(strings.NewReader(builds.Stdout)); ; {
		var e ended
		if err := dec.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil || e.Row >= len(all) {
			t.Fatalf("row %d: %v", e.Row, err)
		}
		all[e.Row] = e
	}
	for i, b := range rows {
		t.Run(b.Name, func(t *testing.T) { all[i].judge(t, b) })
	}
	t.Run("branches", func(t *testing.T) { hostileBranches(t, m) })

	t.Run("programs", func(t *testing.T) {
		started := 0
		for program, n := range programs(m) {
			if ordinary[program] == 0 && !nodePrograms.MatchString(program) {
				t.Errorf("it ran %s", program)
			}
			if strings.HasPrefix(program, "kbnode-gpu") && strings.HasSuffix(program, " kbnode") {
				started += n
			}
		}
		for program := range ordinary {
			if !strings.HasPrefix(program, "root ") && !nodePrograms.MatchString(program) {
				t.Errorf("an ordinary job ran %s", program)
			}
		}
		if started < reach {
			t.Errorf("kbnode bootstrap ran %d times, want %d or more", started, reach)
		}
	})
	t.Run("slots", func(t *testing.T) {
		for slot := range 8 {
			idle(t, m, slot)
		}
		must.Equal(t, "", m.Sh("systemctl list-units --failed --plain --no-legend 'kbnode*' 'buildkite*' 'docker*'"))
		m.Sh("bkstub wait-agents --count 8 --timeout 3m")
	})
	t.Run("files", func(t *testing.T) {
		if r := m.Try("(" + files + ") | diff /root/attack/files -"); r.Code != 0 {
			t.Errorf("the node is not as it was: %s%s", r.Stdout, r.Stderr)
		}
		m.Sh("! test -e " + jobtest.Mark)
		m.Wait("the containers to go", "containers=$(timeout 60 docker ps -aq); test -z \"$containers\"")
	})
	t.Run("parked", func(t *testing.T) {
		m.Sh("systemctl start kbnode")
		for slot := range 8 {
			slotIs(t, m, slot, "idle", "")
		}
	})
}

// judge tests that a build was refused for what it is, by kbnode or by what cannot even start it, or had
// no effect but in its container.
func (e ended) judge(t *testing.T, b jobtest.Build) {
	if e.Job.ExitStatus == nil {
		t.Fatalf("it did not end: %+v", e)
	}
	status, log := *e.Job.ExitStatus, timestamp.ReplaceAllString(e.Log, "")
	switch {
	case b.Agent != "":
		if status != -1 || e.Job.SignalReason != b.Agent {
			t.Errorf("exit status %d, %q; want the agent's %q", status, e.Job.SignalReason, b.Agent)
		}
	case b.Field != "":
		_, why, refused := strings.Cut(log, "kbnode does not run this step")
		if status != job.ExitRefused || !refused || !strings.Contains(why, strings.Trim(strconv.Quote(b.Field), `"`)) {
			t.Errorf("exit status %d; want %d and a refusal that names %s", status, job.ExitRefused, b.Field)
		}
	default:
		ran := strings.Contains(log, "+++ true\n")
		if !ran || e.Job.SignalReason != "" || status < 0 || status == job.ExitRefused || status > 127 {
			t.Errorf("exit status %d, %q; want that of the command in a container", status, e.Job.SignalReason)
		}
	}
	if t.Failed() {
		t.Log(tail(log))
	}
}

// hostileBranches checks out what branches.sh made.
func hostileBranches(t *testing.T, m *vm.Machine) {
	in := func(branch, image, command, option string) vm.Result {
		m.Put("/root/attack/branch.json", 0o600, fmt.Sprintf(`{"BUILDKITE_BRANCH": %q}`, branch))
		r := runStep(m, 0, step(0, image, command, option), "--job-env /root/attack/branch.json")
		r.Stdout = strings.ReplaceAll(r.Stdout, "\r", "") // of the job's terminal
		return r
	}
	run := func(branch, command string) vm.Result { return in(branch, "busybox:test", command, "") }
	r := run("hostile", "ls -lA\nls -A sub | wc -l | sed 's/^/files of sub: /'\ngrep -q $$(printf '\\r') README.md || echo 'README.md is as committed'")
	for _, want := range []string{"etc -> /etc\n", "shadow -> ../../../../../../../../etc/shadow\n", "files of sub: 0\n", "README.md is as committed"} {
		if r.Code != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("exit %d; want %q in %s", r.Code, want, r.Stdout)
		}
	}
	// The engine starts a container by reading its accounts: here a terminal, which the image cannot show.
	if r := in("hostile", "held:test", "echo it ran", ", volumes: [./held:/held]"); r.Code == 0 || strings.Contains(r.Stdout, "it ran\n") {
		t.Errorf("exit %d; want no container: %s", r.Code, r.Stdout)
	}
	for branch, want := range map[string]string{
		"update": "gitmodulesUpdate", "twice": "contains duplicate file entries", "--upload-pack=touch": "BUILDKITE_BRANCH",
	} {
		r := run(branch, "echo it ran")
		if r.Code == 0 || strings.Contains(r.Stdout, "it ran\n") || !strings.Contains(r.Stdout, "kbnode does not run this step") || !strings.Contains(r.Stdout, want) {
			t.Errorf("%s: exit %d; want a refusal with %q: %s", branch, r.Code, want, r.Stdout)
		}
	}
}
