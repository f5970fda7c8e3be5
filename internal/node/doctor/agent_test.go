package doctor

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
)

// TestAgentChecksOfHealthyNode tests that nothing is wrong on a healthy node.
func TestAgentChecksOfHealthyNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	got := summaries(w.ask())
	want := map[string]string{
		"agent-other": "ok: none", "agent-binary": "ok: /usr/bin/buildkite-agent", "agent-version": "ok: 3.138.3, supported by Buildkite until 2027-09-03",
		"agent-endpoint": "ok: " + strings.TrimPrefix(w.bk.URL, "http://"), "agent-token": "ok: mode 0600",
		"agent-token-accepted": "ok: organization kbnode", "agent-hooks": "ok: 0 of the operator",
		"agent-unit": "ok: no drop-in changes them", "agent-socket": "ok: answers",
		"agent-running": "ok: registered", "agent-drained": "ok: 2 slots",
		"buildkite-queue": "ok: b200: 2 agents", "buildkite-agents": "ok: connected",
	}
	must.Equal(t, want, got)
}

// TestAgentChecks breaks the node in each way, and compares the findings and the fix.
func TestAgentChecks(t *testing.T) {
	t.Parallel()
	const dropIn = plan.UnitDir + "/buildkite-agent-gpu1.service.d/mine.conf"
	undo := func(key string) string {
		return "sed -i '/^[[:space:]]*" + key + "[[:space:]]*=/d' " + dropIn + " && systemctl daemon-reload"
	}
	for _, tt := range []struct {
		name string
		do   func(*world)
		want string // "check status slots: detail"
		fix  string // "" if there is advice
	}{
		{"the package's service runs", func(w *world) { w.runs(7, "start", "/system.slice/buildkite-agent.service") }, "agent-other fail: buildkite-agent.service runs; its jobs get all GPUs and CPUs", "systemctl disable --now buildkite-agent.service"},
		{"it will run after a reboot", func(w *world) {
			w.put(plan.UnitDir+"/multi-user.target.wants/buildkite-agent.service", "", 0o644)
			w.put(plan.UnitDir+"/multi-user.target.wants/"+plan.AgentUnit(0), "", 0o644)
		}, "agent-other fail: buildkite-agent.service starts at boot; its jobs get all GPUs and CPUs", "systemctl disable --now buildkite-agent.service"},
		{"somebody started one by hand", func(w *world) {
			w.runs(7, "start", "/user.slice/x.scope")
			w.runs(8, "start", "/buildkite.slice/buildkite-gpu0.slice/y")
			w.runs(10, "--version", "/system.slice/kbnode.service")
			w.put("/proc/9/comm", "bash\n", 0o644)
			w.put("/proc/9/cgroup", "0::/\n", 0o644)
		}, `agent-other fail: a buildkite-agent runs outside the slots: process 7 in "/user.slice/x.scope"`, ""},

		{"users of the scripts", func(w *world) {
			w.put("/etc/group", "docker:x:9:alice,buildkite\nvideo:x:8:buildkite\nsudo:x:7:buildkite-agent\n", 0o644)
		}, "agent-other warn: user buildkite of an earlier setup is in group docker, which is as good as root\nagent-other warn: user buildkite-agent of an earlier setup is in group sudo, which is as good as root", "gpasswd -d buildkite docker"},
		{"users of the scripts before kbnode", func(w *world) {
			w.put("/etc/group", "docker:x:9:buildkite\n", 0o644)
			w.must(os.MkdirAll(w.Path("/var/lib/buildkite-agent/builds-gpu0"), 0o755))
			w.must(os.Remove(w.Path(plan.BindingsPath)))
		}, "", ""},
		{"checkouts of the scripts", func(w *world) {
			w.must(os.MkdirAll(w.Path("/var/lib/buildkite-agent/builds-gpu0"), 0o755))
			w.must(os.MkdirAll(w.Path("/var/lib/buildkite/builds-gpu7"), 0o755))
			w.must(os.MkdirAll(w.Path("/var/lib/buildkite-agent/builds-other"), 0o755))
		}, "agent-other warn: checkouts of an earlier setup are left: /var/lib/buildkite-agent/builds-gpu0, /var/lib/buildkite/builds-gpu7", ""},

		{"a new slot that waits", func(w *world) {
			w.State.Slots[1].Agent = slot.Unit{Name: plan.AgentUnit(1), Load: "not-found"}
			delete(w.State.Units, plan.JobSocket(1))
			w.Changes = append(w.Changes, reconcile.Change{Kind: reconcile.Create, Subject: plan.AgentUnit(1), Slot: 1, Deferred: "waits for job 7"})
		}, "agent-running warn 1: the slot is new, and waits for job 7", ""},
		{"the agent is gone", func(w *world) { w.Inventory.Software.Agent = inventory.Agent{} }, "agent-binary fail: buildkite-agent is missing", "kbnode install"},
		{"the agent is not executable", func(w *world) {
			w.put("/usr/bin/buildkite-agent", "", 0o644)
			w.Inventory.Problems = []inventory.Problem{{Subject: "buildkite-agent", Detail: "permission denied"}}
		}, "agent-binary fail: /usr/bin/buildkite-agent is not executable", "chmod 755 /usr/bin/buildkite-agent"},
		{"the agent is for another machine", func(w *world) {
			w.Inventory.Problems = []inventory.Problem{{Subject: "buildkite-agent", Detail: "exec format error"}}
		}, "agent-binary fail: /usr/bin/buildkite-agent does not run: exec format error", ""},
		{"the agent that install fetched is broken", func(w *world) {
			w.Inventory.Software.Agent.Path = "/usr/local/libexec/kbnode/dist/buildkite-agent"
			w.put(w.Inventory.Software.Agent.Path, "", 0o755)
			w.Inventory.Problems = []inventory.Problem{{Subject: "buildkite-agent", Detail: "exec format error"}}
		}, "agent-binary fail: /usr/local/libexec/kbnode/dist/buildkite-agent does not run: exec format error",
			"rm /usr/local/libexec/kbnode/dist/buildkite-agent && kbnode install"},
		{"a release is gone", func(w *world) { w.Plan.Slots[1].AgentVersion = "3.100.0" },
			"agent-binary fail: buildkite-agent 3.100.0, which slots run, is missing", "kbnode upgrade --agent-version 3.100.0"},
		{"an old agent", func(w *world) { w.Inventory.Software.Agent.Version = "3.76.2" },
			"agent-version warn 0-1: buildkite-agent 3.76.2 is supported by Buildkite only until 2027-01-01", "kbnode upgrade --agent-version 3.138.3"},
		{"an old agent after its support", func(w *world) {
			w.Inventory.Software.Agent.Version, w.Now = "3.76.2", time.Date(2027, time.January, 1, 0, 0, 0, 0, time.UTC)
		}, "agent-version warn 0-1: buildkite-agent 3.76.2 is not supported by Buildkite since 2027-01-01", "kbnode upgrade --agent-version 3.138.3"},
		{"an old agent of the operator's", func(w *world) { w.Inventory.Software.Agent.Version, w.Config.Agent.Binary = "3.60.1", "/opt/bk" },
			"agent-version warn 0-1: buildkite-agent 3.60.1 is supported by Buildkite only until 2027-01-01", ""},
		{"an agent that does not do well with streaming", func(w *world) { w.Inventory.Software.Agent.Version = "3.127.2" },
			"agent-version warn 0-1: buildkite-agent 3.127.2 asks for jobs every few seconds; newer ones are sent them at once", "kbnode upgrade --agent-version 3.138.3"},
		{"the pinned agent, when its support ends", func(w *world) { w.Now = time.Date(2027, time.June, 3, 0, 0, 0, 0, time.UTC) },
			"agent-version warn 0-1: buildkite-agent 3.138.3 is supported by Buildkite only until 2027-09-03", ""},
		{"an agent that kbnode does not know yet", func(w *world) { w.Inventory.Software.Agent.Version = "4.11.0" }, "", ""},
		{"an agent of the future", func(w *world) { w.Inventory.Software.Agent.Version = "5.0.0" },
			"agent-version warn 0-1: buildkite-agent 5.0.0 is too new: kbnode supports 3 and 4", ""},

		{"an operator's hook that all may write", func(w *world) {
			w.put(plan.HooksDir+"/environment", "#!/bin/bash\n", 0o755)
			w.put(plan.HooksDir+"/pre-exit", "#!/bin/bash\n", 0o755)
			w.must(os.Chmod(w.Path(plan.HooksDir+"/pre-exit"), 0o777))
		}, "agent-hooks fail: hook pre-exit, so the slots run no job: ROOT/etc/buildkite-agent/hooks/pre-exit must be root's own, and no one else may write to it",
			"chown -R root:root /etc/buildkite-agent/hooks && chmod -R go-w /etc/buildkite-agent/hooks"},
		{"an operator's hook that bash runs", func(w *world) { w.put(plan.HooksDir+"/environment", "export A=b\n", 0o644) }, "", ""},

		{"no restart", func(w *world) { w.dropIn(1, "Restart=no") },
			`agent-unit fail 1: Restart is "no" instead of always: an agent that Buildkite disconnects does not start again; set in ` + dropIn, undo("Restart")},
		{"jobs are killed", func(w *world) { w.dropIn(1, "KillMode=process") },
			`agent-unit fail 1: KillMode is "process" instead of mixed: stopping it ends jobs or leaves their processes behind; set in ` + dropIn, undo("KillMode")},
		{"a short stop", func(w *world) { w.dropIn(1, " TimeoutStopSec=1min") },
			`agent-unit fail 1: TimeoutStopSec is "1min" instead of 9900: stopping it kills jobs that take longer; set in ` + dropIn, undo("TimeoutStopSec")},
		{"another slice", func(w *world) { w.dropIn(1, "Slice=x.slice") },
			`agent-unit fail 1: Slice is "x.slice" instead of buildkite-gpu1.slice: its agent runs outside the slot's limits; set in ` + dropIn, undo("Slice")},
		{"another user", func(w *world) { w.dropIn(1, "User=root") },
			`agent-unit fail 1: User is "root" instead of kbnode-gpu1: its agent runs as another user; set in ` + dropIn, undo("User")},
		{"a home", func(w *world) { w.dropIn(1, "ProtectHome=no") },
			`agent-unit fail 1: ProtectHome is "no" instead of yes: its agent reaches what others keep at home; set in ` + dropIn, undo("ProtectHome")},
		{"a longer stop", func(w *world) { w.dropIn(1, "TimeoutStopSec=3h\nRestart=always") }, "", ""},
		{"a longer stop in minutes", func(w *world) { w.dropIn(1, "TimeoutStopSec=180min") }, "", ""},
		{"a longer stop in hours and minutes", func(w *world) { w.dropIn(1, "TimeoutStopSec = 2h 50min") }, "", ""},
		{"a longer stop in days", func(w *world) { w.dropIn(1, "TimeoutStopSec=1d") }, "", ""},
		{"blanks", func(w *world) { w.dropIn(1, "Restart = no") },
			`agent-unit fail 1: Restart is "no" instead of always: an agent that Buildkite disconnects does not start again; set in ` + dropIn, undo("Restart")},
		{"no limit of a stop", func(w *world) { w.dropIn(1, "TimeoutStopSec=infinity") }, "", ""},

		{"the socket is stopped", func(w *world) { w.socketOf(1, func(u *slot.Unit) { u.Active = "inactive" }) },
			"agent-socket fail 1: the slot takes no jobs: systemd does not listen on its socket", "systemctl start kbnode-job-gpu1.socket"},
		{"the socket has failed", func(w *world) {
			w.socketOf(1, func(u *slot.Unit) { u.Active, u.Result = "failed", "resources" })
			w.f.journal[plan.JobSocket(1)] = []string{"Failed to create listening socket"}
		}, "agent-socket fail 1: the slot's socket has failed: Failed to create listening socket", "systemctl restart kbnode-job-gpu1.socket"},
		{"the socket is gone", func(w *world) { w.must(os.Remove(w.Path(plan.SocketPath(1)))) },
			"agent-socket fail 1: /run/kbnode/gpu1/job.sock does not answer: dial unix ROOT/run/kbnode/gpu1/job.sock: connect: no such file or directory", "systemctl restart kbnode-job-gpu1.socket"},
		{"a socket for all", func(w *world) { w.must(os.Chmod(w.Path(plan.SocketPath(1)), 0o666)) },
			"agent-socket fail 1: /run/kbnode/gpu1/job.sock has mode 0666, so any user of this machine may run jobs", "chmod 660 /run/kbnode/gpu1/job.sock"},
		{"a socket that nobody serves", func(w *world) {
			w.must(os.Remove(w.Path(plan.SocketPath(1))))
			w.deaf(1)
		}, "agent-socket fail 1: /run/kbnode/gpu1/job.sock does not answer: dial unix " + "ROOT/run/kbnode/gpu1/job.sock: connect: connection refused", "systemctl restart kbnode-job-gpu1.socket"},
		{"slots that can start no job", func(w *world) {
			w.answers["slot"] = "memory.max of buildkite-gpu0.slice is max"
		},
			"agent-socket fail 0: no job can start: memory.max of buildkite-gpu0.slice is max\nagent-socket fail 1: no job can start: memory.max of buildkite-gpu0.slice is max", ""},
		{"a slot that has not its limits", func(w *world) {
			w.answers["slot"] = "memory.max of buildkite-gpu1.slice is max"
			w.Changes = []reconcile.Change{{Kind: reconcile.Set, Subject: plan.SliceName(1), Slot: 1}}
			w.State.Units[plan.SliceName(1)] = slot.Unit{Load: "loaded", Active: "active"}
		}, "agent-socket fail 0: no job can start: memory.max of buildkite-gpu1.slice is max", ""}, // slot-limits says it of the other
		{"Docker does not answer", func(w *world) {
			w.answers["slot"], w.Inventory.Software.Docker.Version = "ask Docker: connection refused", ""
		}, "", ""},

		{"an agent ends again and again", func(w *world) {
			w.agentOf(1, func(u *slot.Unit) {
				u.Active, u.Sub, u.Result, u.ExitStatus = "activating", "auto-restart", "exit-code", 1
			})
			w.f.journal[plan.AgentUnit(1)] = []string{"fatal: Could not find queue", "Stopped."}
		}, "agent-running fail 1: the agent keeps failing (exit-code, exit status 1): fatal: Could not find queue", ""},
		{"an agent ended after its job", func(w *world) {
			w.agentOf(1, func(u *slot.Unit) { u.Active, u.Sub, u.Result = "activating", "auto-restart", "success" })
		}, "agent-running warn 1: the agent is starting", ""},
		{"an agent starts", func(w *world) { w.agentOf(1, func(u *slot.Unit) { u.Active, u.Sub = "activating", "start" }) },
			"agent-running warn 1: the agent is starting", ""},
		{"an agent waits long for its slot to be cleared", func(w *world) {
			w.agentOf(1, func(u *slot.Unit) { u.Active, u.Sub = "activating", "start-pre" })
		}, "agent-running fail 1: the agent waits for the slot to be cleared", ""},
		{"an agent waits for its slot to be cleared", func(w *world) {
			w.agentOf(1, func(u *slot.Unit) { u.Active, u.Sub, u.Since = "activating", "start-pre", w.Now.Add(-time.Minute) })
		}, "agent-running warn 1: the agent is starting", ""},
		{"an agent is stopped", func(w *world) { w.agentOf(1, func(u *slot.Unit) { u.Active = "inactive" }) },
			"agent-running fail 1: the agent is inactive", "systemctl start --no-block buildkite-agent-gpu1.service"},
		{"an agent's unit is masked", func(w *world) { w.agentOf(1, func(u *slot.Unit) { u.Load, u.Active = "masked", "inactive" }) },
			"agent-running fail 1: buildkite-agent-gpu1.service is masked", "systemctl unmask buildkite-agent-gpu1.service && kbnode reconcile"},
		{"an agent has not registered", func(w *world) {
			w.must(os.Remove(w.Path(slot.RegisteredMarker(1))))
			w.f.journal[plan.AgentUnit(1)] = []string{"error: x509: certificate has expired"}
		}, "agent-running fail 1: the agent runs but has not registered: error: x509: certificate has expired", "systemctl restart --no-block buildkite-agent-gpu1.service"},
		{"an agent has just started", func(w *world) {
			w.must(os.Remove(w.Path(slot.RegisteredMarker(1))))
			w.agentOf(1, func(u *slot.Unit) { u.Since, u.Started = w.Now.Add(-30*time.Second), w.Now.Add(-31*time.Second) })
		}, "agent-running warn 1: the agent has been running for 30s and has not registered yet", ""},
		{"an agent after nine jobs", func(w *world) {
			w.agentOf(1, func(u *slot.Unit) { u.Since, u.Restarts = w.Now.Add(-time.Second), 9 })
		}, "", ""},
		{"an agent that waits for its job", func(w *world) { w.agentOf(1, func(u *slot.Unit) { u.Active = "deactivating" }) }, "", ""},
		{"a job that began before the reinstallation", func(w *world) {
			w.must(os.Remove(w.Path(slot.RegisteredMarker(1))))
			w.State.Slots[1].Job = &slot.Job{ID: "1"}
		}, "", ""},

		{"a drained slot", func(w *world) {
			w.Plan.Slots[1].Drains = []plan.Drain{{Slot: 1, By: plan.ByOperator, Reason: "new fan", Since: time.Unix(0, 0)}}
			w.agentOf(1, func(u *slot.Unit) { u.Active = "inactive" })
		}, "agent-drained warn 1: drained by operator: new fan (since 1970-01-01 00:00)", ""},
		{"a slot that its health drains", func(w *world) { w.Plan.Slots[1].Drains = []plan.Drain{{Slot: 1, By: "gpu.ecc"}} }, "", ""},
		{"a slot that is parked", func(w *world) {
			w.put(plan.RunDir(1)+"/parked/clean.json", `{"reason":"process 7 does not end"}`, 0o644)
			w.must(os.Remove(w.Path(slot.RegisteredMarker(1))))
		}, "", ""},
		{"all slots are busy", func(w *world) {
			for k := range w.State.Slots {
				w.State.Slots[k].Job = &slot.Job{ID: "1"}
			}
		}, "", ""},

		{"no queue in Buildkite", func(w *world) {
			w.answers["/v3/metrics"] = `{"organization":{"slug":"kbnode"},"agents":{"queues":{"default":{"total":9}}}}`
		}, "buildkite-queue fail 0-1: the token's cluster has no queue b200, or no agent in it", ""},
		{"an agent is lost", func(w *world) {
			w.answers["/v3/metrics"] = `{"organization":{"slug":"kbnode"},"agents":{"queues":{"b200":{"total":1}}}}`
			w.answers["/v2/organizations/kbnode/agents"] = `[{"name":"node1-gpu0","meta_data":["queue=b200"]}]`
		}, "buildkite-queue warn 0-1: queue b200 has 1 agents, but 2 slots use it\nbuildkite-agents fail 1: Buildkite does not list the agent", ""},
		{"agents of other names", func(w *world) {
			w.answers["/v2/organizations/kbnode/agents"] = `[{"name":"node1-gpu0","meta_data":["queue=x"]},{"name":"node1-gpu1","hostname":"a"},{"name":"node1-gpu1","hostname":"b"}]`
		}, "buildkite-agents fail 0: Buildkite does not list the agent in queue b200\nbuildkite-agents warn 1: 2 agents are named node1-gpu1, on a, b", "systemctl restart --no-block buildkite-agent-gpu0.service"},
		{"a paused agent", func(w *world) {
			w.answers["/v2/organizations/kbnode/agents"] = `[{"name":"node1-gpu0","meta_data":["queue=b200"]},{"name":"node1-gpu1","paused":true,"paused_note":"night"}]`
		}, "buildkite-agents warn 1: the agent is paused in Buildkite and gets no jobs: night", ""},
		{"an API token of no use", func(w *world) { w.answers["/v2/organizations/kbnode/agents"] = fmt.Sprint(http.StatusForbidden) },
			"buildkite-agents warn: list agents: the API token may not do this; give it the scope read_agents", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			tt.do(w)
			w.expect(w.ask(), tt.want, tt.fix)
		})
	}
}

// expect compares what is wrong in a report, and the first command, with what should be.
func (w *world) expect(r *Report, want, fix string) {
	w.t.Helper()
	var got []string
	command := ""
	for _, c := range r.Checks {
		for _, f := range c.Findings {
			if f.Status < Warn {
				continue
			}
			slots := ""
			if len(f.Slots) > 0 {
				slots = " " + cpuset.Of(f.Slots...).String()
			}
			got = append(got, fmt.Sprintf("%s %s%s: %s", c.ID, f.Status, slots, f.Detail))
			if f.Fix == "" && f.Advice == "" {
				w.t.Errorf("%s says nothing of what to do", c.ID)
			}
			if command == "" {
				command = f.Fix
			}
		}
	}
	text := strings.ReplaceAll(strings.Join(got, "\n"), w.Root, "ROOT")
	if diff := cmp.Diff(want, text); diff != "" {
		w.t.Error(diff)
	}
	if command != fix {
		w.t.Errorf("type %q, want %q", command, fix)
	}
	if command != "" && typeFix(w.t, w.Machine, w.f, command) {
		for _, c := range w.ask().Checks {
			for _, f := range c.Findings {
				if f.Fix == command {
					w.t.Errorf("%s was typed, and is still to type: %s", command, f.Detail)
				}
			}
		}
	}
}
