//go:build vm

package vm_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// holding is a job that opens a device node, waits to be told, and opens it again.
const holding = `steps:
  - command: |
      (exec 3<>%[3]s) 2>&1 || true
      until test -e /end; do sleep 1; done
      (exec 3<>%[3]s) 2>&1 || true
      echo slept well
    agents: {queue: %[1]s, gpu-index: "%[2]d"}
    plugins:
      - docker#v5.11.0: {image: "busybox:test"%[4]s}
`

// holder is such a job, the only one of its machine.
type holder struct {
	m         *vm.Machine
	job       *vm.Process
	probe, is string // what must stay while it runs
}

func hold(m *vm.Machine, queue string, slot int, node, option string) *holder {
	const file = "/tmp/holding.yml"
	m.Put(file, 0o600, fmt.Sprintf(holding, queue, slot, node, option))
	h := &holder{m: m, job: m.Start("bash", "-c", "bkstub submit --queue "+queue+" --steps "+file+" --wait")}
	m.Wait("the job's container", "docker ps -q | grep -q .")
	h.probe = fmt.Sprintf("docker ps -q; systemctl show -P MainPID buildkite-agent-gpu%d 'kbnode-job-gpu%[1]d@*.service'", slot)
	h.is = m.Sh(h.probe)
	return h
}

// end lets the job go on, which nothing may have touched. Whether it may still open what is
// gone, for the driver, too, no one asks.
func (h *holder) end(t *testing.T, lost bool) {
	t.Helper()
	opens := map[bool]int{false: 2, true: 1}[lost]
	must.Equal(t, h.is, h.m.Sh(h.probe))
	h.m.Sh("docker exec $(docker ps -q) touch /end")
	if r := h.job.Wait(); r.Code != 0 || !strings.Contains(r.Stdout, "slept well") || strings.Count(r.Stdout, "No such device") < opens {
		t.Errorf("the job ended with %d: %s", r.Code, r.Stdout)
	}
}

// agentsAre compares what status says of slots' agents; of a slot that runs a job it is "job".
func agentsAre(t *testing.T, m *vm.Machine, want map[string]string) {
	t.Helper()
	got := map[string]string{}
	for _, s := range status(t, m).Slots {
		got[s.Slot] = s.Agent
		if s.Job != nil {
			got[s.Slot] = "job"
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("agents (-want +got):\n%s%s", diff, m.Try("kbnode status").Stdout)
	}
}

// all is one word for each of some slots.
func all(state string, slots ...string) map[string]string {
	m := map[string]string{}
	for _, s := range slots {
		m[s] = state
	}
	return m
}

// but is a map of agents with another word for some.
func but(base map[string]string, state string, slots ...string) map[string]string {
	m := maps.Clone(base)
	maps.Copy(m, all(state, slots...))
	return m
}

const installShaped = "kbnode install --queue shapes --token-file /root/token --endpoint http://127.0.0.1:8899/v3 "

// divideAnew divides GPU 4 of migLayout in another way, and loses GPU 0, each beside a job
// on an instance of the latter.
func divideAnew(t *testing.T, m *vm.Machine, p plan.Plan) {
	idle := all("idle", "gpu0", "gpu1", "gpu11", "gpu12", "gpu13")
	job := hold(m, "shapes", 0, "/dev/nvidia0", ", gpus: all")
	m.Sh("sim-shape divide 4:1g.23gb,1g.23gb; kbnode reconcile")
	agentsAre(t, m, but(but(idle, "parked", "gpu11", "gpu12"), "job", "gpu0"))
	if shown := m.Sh("kbnode plan"); !strings.Contains(shown, "NVIDIA B200 1g.23gb") {
		t.Errorf("plan does not show what install would do:\n%s", shown)
	}
	t.Logf("install beside the job:\n%s", m.Sh(installShaped+"2>&1"))
	agentsAre(t, m, but(idle, "job", "gpu0"))
	anew := planned(t, m, "")
	for _, s := range anew.Slots[2:4] {
		if s.Shape != "b200-1g-23gb" || !slices.Contains(s.Tags, "gpu-part=1g.23gb") {
			t.Errorf("%s is %s with the tags %v", s.Name, s.Shape, s.Tags)
		}
	}
	onlyTheirs(t, m, plan.Plan{Slots: anew.Slots[2:4]}, allGPUs)
	job.end(t, false)
	m.Wait("all as planned", "kbnode status")
	if got := planned(t, m, "").Slots[0]; got.Name != p.Slots[0].Name || got.CPUs != p.Slots[0].CPUs || !slices.Equal(gpuNodes(got), gpuNodes(p.Slots[0])) {
		t.Errorf("the slot that nobody changed is %+v", got)
	}

	job = hold(m, "shapes", 0, "/dev/nvidia0", ", gpus: all")
	m.Sh("sim-gpu lose 0; sim-shape again; kbnode reconcile")
	agentsAre(t, m, but(but(idle, "parked", "gpu1"), "job", "gpu0"))
	job.end(t, true)
	m.Wait("the end of the slot", `(kbnode status --json || true) | jq -e '.slots[0].agent == "parked"'`)
	agentsAre(t, m, but(idle, "parked", "gpu0", "gpu1"))
	m.Sh("sim-gpu restore 0; sim-shape again; kbnode reconcile; bkstub wait-agents --count 5 --timeout 3m")
	agentsAre(t, m, idle)
}

// loseAMD takes an AMD GPU away beside a job on one of its slots.
func loseAMD(t *testing.T, m *vm.Machine, p plan.Plan, address string) {
	idle, lost := map[string]string{}, []string{}
	var busy plan.Slot
	for _, s := range p.Slots {
		idle[s.Name] = "idle"
		if s.GPUs[0].PCI == address {
			busy, lost = s, append(lost, s.Name)
		}
	}
	job := hold(m, "shapes", busy.Index, gpuNodes(busy)[0], "")
	m.Sh("sim-shape lose " + address + "; kbnode reconcile")
	agentsAre(t, m, but(but(idle, "parked", lost...), "job", busy.Name))
	job.end(t, true)
	m.Wait("the end of the slot", fmt.Sprintf(`(kbnode status --json || true) | jq -e '.slots[] | select(.slot == "%s").agent == "parked"'`, busy.Name))
	agentsAre(t, m, but(idle, "parked", lost...))
}

// groupsOfGPUs goes from two slots of four GPUs to four of one and one of four, and to slots
// without any.
func groupsOfGPUs(t *testing.T, m *vm.Machine) {
	shaped(t, m, "all --gpus-per-slot 4", 2)
	m.Put("/etc/kbnode/config.yaml", 0o644, "queue: shapes\ngroups: [[4, 5, 6, 7]]\nagent: {endpoint: http://127.0.0.1:8899/v3}\n")
	m.Sh("systemctl reload kbnode")
	m.Wait("five slots", `(kbnode status --json || true) | jq -e '[.slots[] | select(.agent == "idle")] | length == 5'`)
	p := planned(t, m, "")
	t.Logf("kbnode status:\n%s", m.Sh("kbnode status"))
	idle := all("idle", "gpu0", "gpu1", "gpu2", "gpu3", "gpu4")
	agentsAre(t, m, idle)
	onlyTheirs(t, m, plan.Plan{Slots: p.Slots[3:]}, allGPUs)

	job := hold(m, "shapes", 4, "/dev/nvidia5", ", gpus: all")
	m.Sh("sim-gpu lose 6; kbnode reconcile")
	agentsAre(t, m, but(idle, "job", "gpu4"))
	job.end(t, false)
	m.Wait("the end of the slot", `(kbnode status --json || true) | jq -e '.slots[4].agent == "parked"'`)
	agentsAre(t, m, but(idle, "parked", "gpu4"))
	m.Sh("sim-gpu restore 6; kbnode reconcile; bkstub wait-agents --count 5 --timeout 3m")
	agentsAre(t, m, idle)

	m.Sh("rm /etc/kbnode/config.yaml") // which was the operator's own: no flag may say otherwise
	p = shaped(t, m, "none --slots 4", 4)
	agentsAre(t, m, all("idle", "gpu0", "gpu1", "gpu2", "gpu3"))
	onlyTheirs(t, m, p, "")
}
