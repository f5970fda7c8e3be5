//go:build vm

package vm_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/internal/job"
	"github.com/gpu-mode/kbnode/internal/job/jobtest"
	"github.com/gpu-mode/kbnode/test/vm"
)

// buildsIn bounds how long the hostile builds may take, about ten seconds each.
const buildsIn = 40 * time.Minute

// files lists what no build may add to or change on a node, once each slot has had a job.
const files = `find /etc /home /root /run/kbnode /tmp /usr/local /var/tmp -xdev \
	\( -path /root/attack -o -path '/root/steps-*' -o -path '*/systemd-private-*' -o -path '/run/kbnode/gpu*/agent' -o -path '/run/kbnode/gpu*/mirrors' -o -path '/run/kbnode/gpu*/job.json' \) -prune -o -printf '%p %y %m %u %l\n' | sort
	find /etc -type f -exec cksum {} + | sort
	timeout 60 docker volume ls -q; timeout 60 docker network ls -q | sort`

// follow traces what systemd starts from now on, such as agents, what the agents and services of all
// slots start, and all below. What runs in containers comes from containerd, which is not traced.
const follow = `mount -t tracefs none /sys/kernel/tracing 2>/dev/null || true
	cd /sys/kernel/tracing; echo 0 >tracing_on; echo >trace; echo 1 >options/event-fork
	echo 1 >set_event_pid
	for unit in $(systemctl list-units --plain --no-legend 'buildkite-agent-gpu*.service' 'kbnode-guard-gpu*.service' | awk '{print $1}'); do
		ls "/proc/$(systemctl show -P MainPID "$unit")/task" >>set_event_pid
	done
	echo 1 >events/sched/sched_process_exec/enable; echo 1 >tracing_on`

// followed prints how many processes ran which programs, one after the other, and whether the trace is whole.
const followed = `cd /sys/kernel/tracing; echo 0 >tracing_on; echo 0 >events/sched/sched_process_exec/enable
	sed -n 's/.*entries-written: \([0-9]*\)\/\1 .*/whole/p' trace
	sed -n 's/.*filename=\(.*\) pid=\([0-9]*\) old_pid=.*/\2 \1/p' trace |
		awk '{pid = $1; sub(/^[0-9]+ /, ""); ran[pid] = ran[pid] " " $0} END {for (pid in ran) print ran[pid]}' | sort | uniq -c
	echo >trace`

// programs of a node, as followed prints them. Only systemd runs its executor; the shell is that of
// an agent's unit, whose command is kbnode's. Git's mirror on this machine is a directory, which it
// reads by a shell.
var nodePrograms = regexp.MustCompile(`^ *[0-9]+  (` +
	`/usr/lib/systemd/systemd-executor( /usr/local/bin/kbnode( \S*/buildkite-agent)?| /bin/sh( /usr/bin/sleep)?| /usr/lib/systemd/\S+)` +
	`|/usr/local/bin/kbnode|/usr/bin/buildkite-agent|/usr/local/libexec/kbnode/\S*buildkite-agent` +
	`|(/usr)?/bin/sh( /usr/(bin|lib/git-core)/git\S*)?|/usr/(bin|lib/git-core)/git\S*( /usr/(bin|lib/git-core)/git\S*)*` +
	`)$`)

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
	m.Sh("systemctl stop kbnode") // its own work starts programs
	putScripts(t, m)
	m.Sh("docker tag kernelbot-test:latest kernelbot:latest; bash /srv/attack/branches.sh")
	for slot := range 8 {
		idle(t, m, slot)
	}
	m.Sh("bkstub wait-agents --count 8 --timeout 3m; (" + files + ") >/root/attack/files; " + follow)

	rows, lines := []jobtest.Build{}, strings.Builder{}
	for _, b := range jobtest.Hostile {
		if b.Sendable() {
			rows = append(rows, b)
			if err := json.NewEncoder(&lines).Encode(jobtest.Step(b.Vars)); err != nil {
				t.Fatal(err)
			}
		}
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
		got := strings.Split(m.Sh(followed), "\n")
		if got[0] != "whole" {
			t.Error("the trace is not whole")
		}
		started := 0
		for _, line := range got[1:] {
			if !nodePrograms.MatchString(line) {
				t.Errorf("it ran %s", line)
			}
			if n, ok := strings.CutSuffix(line, "  /usr/local/bin/kbnode"); ok {
				started, _ = strconv.Atoi(strings.TrimSpace(n)) // 0 fails below
			}
		}
		if want := len(slices.DeleteFunc(rows, func(b jobtest.Build) bool { return b.Agent != "" })); started < want {
			t.Errorf("the trace has kbnode bootstrap %d times, want %d or more:\n%s", started, want, strings.Join(got, "\n"))
		}
	})
	t.Run("slots", func(t *testing.T) {
		for slot := range 8 {
			idle(t, m, slot)
			if got := m.Sh(fmt.Sprintf("systemctl show -P NRestarts kbnode-guard-gpu%d", slot)); got != "0" {
				t.Errorf("the service of slot %d restarted %s times", slot, got)
			}
		}
		if got := m.Sh("systemctl list-units --failed --plain --no-legend"); got != "" {
			t.Errorf("units failed: %s", got)
		}
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
	run := func(branch, command string) vm.Result {
		m.Put("/root/attack/branch.json", 0o600, fmt.Sprintf(`{"BUILDKITE_BRANCH": %q}`, branch))
		return runStep(m, 0, step(0, "busybox:test", command, ""), "--job-env /root/attack/branch.json")
	}
	r := run("hostile", "ls -lA\nls -A sub | wc -l | sed 's/^/files of sub: /'\ngrep -q $$(printf '\\r') README.md || echo 'README.md is as committed'")
	for _, want := range []string{"etc -> /etc\n", "shadow -> ../../../../../../../../etc/shadow\n", "files of sub: 0\n", "README.md is as committed\n"} {
		if r.Code != 0 || !strings.Contains(r.Stdout, want) {
			t.Errorf("exit %d; want %q in %s", r.Code, want, r.Stdout)
		}
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
