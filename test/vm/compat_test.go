//go:build vm

package vm_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/test/must"
	"github.com/gpu-mode/kbnode/test/vm"
)

// share is what a job of the existing pipelines may look at; result.json is what
// its submitter gets.
const share = `echo ":: gpu $(ls /dev/nvidia[0-9]*) $CUDA_VISIBLE_DEVICES $NVIDIA_VISIBLE_DEVICES"
echo ":: cpus $(nproc) $(grep Cpus_allowed_list /proc/self/status | tr -d '\t')"
echo ":: memory $(cat /sys/fs/cgroup/memory.max)"
echo "{\"slot\": $KERNELBOT_GPU_INDEX}" >result.json
`

const artifacts = "    artifact_paths: [result.json]\n"

// compatible are pipelines in the shape of kernelbot's. Each also shows its share,
// unless it has steps of its own.
func compatible() []attack {
	list := []attack{
		{ // "Working Docker pipeline" of the infrastructure guide
			name: "guide", image: "127.0.0.1:5000/guide:latest",
			option: `, always-pull: true, environment: [NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES], cpus: "${KERNELBOT_CPUS:-8}", memory: "${KERNELBOT_MEMORY:-64g}"`,
			script: `echo ":: asked $NVIDIA_VISIBLE_DEVICES"; free >/dev/null && echo :: free`, wants: []string{"asked void", "free"},
		},
		{ // deployment/buildkite/pipeline.yml with the cache of the guide's option C, and packages that are installed as it runs (option B)
			name: "runtime and packages", image: "${KERNELBOT_IMAGE:-kernelbot-test:latest}",
			option: `, runtime: nvidia, environment: [NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES, KERNELBOT_PAYLOAD, KERNELBOT_RUN_ID, KERNELBOT_GPU_INDEX, KERNELBOT_CPUSET],
          volumes: ["/var/lib/buildkite-agent/cache:/cache:rw", "/var/lib/buildkite-agent/cache/pip:/root/.cache/pip:rw"]`,
			flags: "--env KERNELBOT_PAYLOAD=abc=",
			script: `test -z "$(ls -A /cache /root/.cache/pip | grep -v :)" && touch /cache/x /root/.cache/pip/x && echo ":: empty caches"; mkdir -p /usr/lib/python3/dist-packages/extra /var/lib/extra && echo 'answer = 42' >/usr/lib/python3/dist-packages/extra/__init__.py
echo 'extra:x:777:777::/var/lib/extra:/bin/sh' >>/etc/passwd; chown 777:777 /var/lib/extra; mkfifo /var/lib/extra/fifo
cp /bin/ls /usr/local/bin/extra.new; chmod 4755 /usr/local/bin/extra.new; ln /usr/local/bin/extra.new /usr/local/bin/extra.old; mv -f /usr/local/bin/extra.new /usr/local/bin/extra
python3 - <<'END'
import extra, os
print("::", "payload", os.environ["KERNELBOT_PAYLOAD"], os.environ["KERNELBOT_RUN_ID"][:4], extra.answer)
os.setgroups([]); os.setgid(777); os.setuid(777); open("/var/lib/extra/mine", "w").close()
END
extra / >/dev/null && echo ":: $(stat -c '%u %a' /usr/local/bin/extra /var/lib/extra/mine | tr '\n' ' ')"`,
			wants: []string{"empty caches", "payload abc= run- 42", "0 4755 777 644"},
		},
		{
			name: "environment, volumes and shell",
			option: `, environment: [GREETING=hello world, KERNELBOT_RUN_ID, MISSING, "NVIDIA_VISIBLE_DEVICES=all", LD_PRELOAD=/x.so], env-propagation-list: KERNELBOT_LIST, workdir: /elsewhere,
          volumes: ["./:/here", ".:/again:ro"], expand-volume-vars: true, expand-image-vars: true, network: bridge, shell: ["/bin/sh", "-e", "-u", "-c"]`,
			script: `echo ":: $GREETING ${MISSING-unset} ${LD_PRELOAD-unset} ${KERNELBOT_RUN_ID%%-*} $KERNELBOT_SHADE"
cmp /here/README.md /again/README.md && ! touch /again/x && pwd | sed 's/^/:: /'; (echo $NOT_THERE) 2>/dev/null || echo :: strict`,
			wants: []string{"hello world unset unset run dark", "/elsewhere", "strict"},
			rest:  "    env: {KERNELBOT_LIST: KERNELBOT_SHADE, KERNELBOT_SHADE: dark}\n",
		},
		{
			name: "sizes and devices",
			option: `, shm-size: 32mb, ulimits: ["nofile=1024:2048", "memlock=-1"], tmpfs: ["/scratch:size=16m,exec"], ipc: private, memory: 200m, memory-swap: "-1", cpus: "2",
          devices: ["/dev/nvidia0", "/dev/nvidia1"]`,
			script: `echo ":: shm $(df -m /dev/shm | tail -n 1 | awk '{print $2}') files $(ulimit -n) scratch $(df -m /scratch | tail -n 1 | awk '{print $2}')"
cp /bin/busybox /scratch/true && /scratch/true && echo :: runs; test "$(cat /sys/fs/cgroup/memory.max)" = 209715200 && echo :: less`,
			wants: []string{"shm 32 files 1024 scratch 16", "runs", "less"},
		},
		{
			name: "plain, and a kept container", option: `, propagate-uid-gid: true, additional-groups: ["44"], tty: false, interactive: false, init: false, run-labels: false, drop-caps: [CHOWN], network: none, leave-container: true`,
			script: `test -t 1 || echo ":: no terminal"; test -e /sys/class/net/eth0 || echo ":: no network"; test "$(id -u)" != 0 && echo ":: not root"; echo ":: groups $(id -G)"`,
			wants:  []string{"no terminal", "no network", "not root", "groups "},
		},
		{
			name: "agent, and exit code", option: `, mount-buildkite-agent: true, user: "0:0"`, code: "1",
			script: `echo ":: token ${BUILDKITE_AGENT_ACCESS_TOKEN-none} user $(id -u)"; /usr/bin/buildkite-agent --version | sed 's/^/:: /'; exit 42`,
			wants:  []string{"token none user 0", "buildkite-agent version"},
			check: func(t *testing.T, m *vm.Machine, r outcome) {
				if out := m.Sh("bkstub wait " + r.build + " 2>&1 || true"); !strings.Contains(out, "exit status 42") {
					t.Errorf("the exit code did not come through: %s", tail(out))
				}
			},
		},
	}
	for i := range list {
		list[i].script = share + list[i].script
		list[i].rest += artifacts
		list[i].code = cmp.Or(list[i].code, "0")
	}
	return append(list,
		attack{ // the guide's "Verify setup", without a plugin
			name: "verify setup", bare: true, code: "0", script: `echo ":: NVIDIA_VISIBLE_DEVICES=$NVIDIA_VISIBLE_DEVICES"; if command -v nvidia-smi; then nvidia-smi -L | sed 's/^GPU [0-9]*/:: GPU/'; fi`,
			wants: []string{"NVIDIA_VISIBLE_DEVICES=void", "GPU: NVIDIA B200 (UUID: GPU-"}, // what a GPU given through CDI leaves of the variable
		},
		attack{name: "command and entrypoint", option: `, entrypoint: /bin/sh, command: ["-c", "echo :: $$(pwd)"], shell: false, mount-checkout: false, workdir: /somewhere`, wants: []string{"/somewhere"}, code: "0"},
	)
}

// compatibleJobs runs pipelines in the shape of the existing ones through the docker plugin, with each of its
// options that they could use.
func compatibleJobs(t *testing.T, m *vm.Machine) {
	var p plan.Plan
	must.Do(t, json.Unmarshal([]byte(m.Sh("kbnode plan --json")), &p))
	putScripts(t, m)
	serveImages(t, m)
	m.Sh("docker tag busybox:test localhost:5000/guide:latest; docker push -q localhost:5000/guide:latest; docker rmi localhost:5000/guide:latest")
	m.Sh(`printf 'image:\n  name: kernelbot-test:latest\njob:\n  private_registries: ["127.0.0.1:5000"]\n' >>/etc/kbnode/config.yaml; kbnode reconcile; bkstub wait-agents --count 8 --timeout 3m`)

	lanes := make([][]attack, len(p.Slots))
	for i, a := range compatible() {
		lanes[(i+1)%len(lanes)] = append(lanes[(i+1)%len(lanes)], a)
	}
	all := attackAll(t, m, lanes)
	for slot, lane := range lanes {
		for _, a := range lane {
			t.Run(a.name, func(t *testing.T) {
				r := all[strconv.Itoa(slot)+" "+a.name]
				if strings.HasPrefix(a.script, share) {
					matchesPlan(t, m, p.Slots[slot], r)
				}
				a.judge(t, m, r)
			})
		}
	}
	t.Run("a cache that jobs shared", func(t *testing.T) {
		for range 2 { // the second finds nothing of the first
			r := runStep(m, 1, step(1, "busybox:test", `echo "cache holds $$(ls -A /cache | wc -w)"; mkdir /cache/pip; echo poison >/cache/pip/x; ! touch /ro/x`,
				`, volumes: ["/var/lib/buildkite-agent/cache:/cache:rw", "/var/lib/buildkite-agent/cache/other:/ro:ro"]`))
			if r.Code != 0 || !strings.Contains(r.Stdout, "cache holds 0") {
				t.Errorf("exit code %d\n%s", r.Code, r.Stdout)
			}
		}
		m.Sh("! test -e /var/lib/buildkite-agent/cache")
		idle(t, m, 1)
	})
}

// matchesPlan compares what a job saw with the plan of its slot.
func matchesPlan(t *testing.T, m *vm.Machine, s plan.Slot, r outcome) {
	t.Helper()
	cpus, err := cpuset.Parse(s.CPUs)
	must.Do(t, err)
	uuid := s.GPUs[0].UUID
	for _, want := range []string{
		fmt.Sprintf("gpu /dev/nvidia%d %s void", s.Index, uuid), // void is CDI's word to NVIDIA's own runtime
		fmt.Sprintf("cpus %d Cpus_allowed_list:%s", cpus.Len(), s.CPUs),
	} {
		if !slices.Contains(r.marks(), want) {
			t.Errorf("it did not see %q", want)
		}
	}
	for _, mark := range r.marks() {
		if bytes, ok := strings.CutPrefix(mark, "memory "); ok {
			if n, err := strconv.ParseInt(bytes, 10, 64); err != nil || n > s.MemoryBytes {
				t.Errorf("its memory is %s, the slot's is %d", bytes, s.MemoryBytes)
			}
		}
	}
	if got, want := m.Try("bkstub artifact "+r.build+" result.json").Stdout, fmt.Sprintf("{\"slot\": %d}\n", s.Index); got != want {
		t.Errorf("result.json is %q, want %q", got, want)
	}
}
