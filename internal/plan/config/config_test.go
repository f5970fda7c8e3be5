package config

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/test/must"
)

// parseCases are files with their result: a Config, or a part of the error.
var parseCases = []struct {
	name, text string
	want       Config
	err        string
}{
	{name: "comments only", text: "# nothing\n", want: Config{}},
	{
		name: "everything people write",
		text: "queue: nvidia-h100-{index}\nnode: box1\ngpus: [0, 2, 5]\ncpus_per_slot: 16\nmemory_per_slot: 32GiB\nreserve:\n  cpus: 4\n  memory: 16G\n",
		want: Config{Queue: "nvidia-h100-{index}", Node: "box1", GPUs: GPUs{List: []string{"0", "2", "5"}}, CPUsPerSlot: 16, MemoryPerSlot: 32 << 30, Reserve: Reserve{CPUs: 4, Memory: 16 << 30}},
	},
	{name: "all GPUs", text: "gpus: all\n", want: Config{GPUs: GPUs{All: true}}},
	{name: "a number of GPUs", text: "gpu_count: 4\n", want: Config{GPUCount: 4}},
	{name: "ranges of GPUs", text: "gpus: 0,2-4\n", want: Config{GPUs: GPUs{List: []string{"0", "2", "3", "4"}}}},
	{name: "a range in a list", text: "gpus: [6, 2-3]\n", want: Config{GPUs: GPUs{List: []string{"6", "2", "3"}}}},
	{name: "range backward", text: "gpus: 3-0\n", err: `f.yaml:1: gpus: "3-0" runs backward; write 0-3`},
	{name: "range without end", text: "gpus: 0-9999\n", err: `f.yaml:1: gpus: "0-9999" lists more GPUs than a machine has`},
	{name: "GPU in two ranges", text: "gpus: 0-3,2-5\n", err: "f.yaml:1: gpus: GPU 2 is listed twice"},
	{name: "no number of GPUs", text: "queue: a\ngpu_count: 0\n", err: `f.yaml:2: gpu_count: "0" is not a number of GPUs; write one above 0`},
	{name: "count against choice", text: "gpus: 0-3\ngpu_count: 2\n", err: "f.yaml:2: gpu_count: 2 and gpus, which lists 4, contradict each other"},
	{name: "one GPU in a list", text: "gpus: [4]\n", want: Config{GPUs: GPUs{List: []string{"4"}}}},
	{name: "no reserve", text: "reserve: {cpus: 0}\n", want: Config{Reserve: Reserve{CPUs: NoThreads}}},
	{name: "negative reserve", text: "reserve:\n  cpus: -1\n", err: "f.yaml:2: reserve.cpus: -1 is negative; write 0 for none"},
	{name: "unknown key", text: "queue: a\nqueues: b\n", err: `f.yaml:2: unknown key "queues"; write "queue"`},
	{name: "unknown nested key", text: "reserve:\n  mem: 1G\n", err: `f.yaml:2: unknown key "mem"; use one of cpus, memory`},
	{name: "hyphens for underscores", text: "cpus-per-slot: 4\n", err: `f.yaml:1: unknown key "cpus-per-slot"; write "cpus_per_slot"`},
	{name: "ambiguous unit", text: "\nreserve:\n  memory: 8GB\n", err: `f.yaml:3: "8GB" is not a size; write "8GiB"`},
	{name: "not a number", text: "cpus_per_slot: many\n", err: `f.yaml:1: "many" is not a whole number`},
	{name: "group for a text", text: "queue: [a]\n", err: "f.yaml:1: queue: this is not a string"},
	{name: "one GPU", text: "gpu: 0-3\n", err: `f.yaml:1: unknown key "gpu"; write "gpus"`},
	{name: "a group and its key in one", text: "loan_until: 2026-12-31\n", err: `f.yaml:1: unknown key "loan_until"; loan is a group: write loan:, and below it, indented, until`},
	{name: "a dotted key", text: "image.name: x\n", err: `f.yaml:1: unknown key "image.name"; image is a group: write image:, and below it, indented, name`},
	{name: "a group for a list", text: "agent: {tags: {site: lab1}}\n", err: "f.yaml:1: agent.tags: this is not a list"},
	{name: "queue with a comma", text: "node: a\nqueue: b200,h100\n", err: `f.yaml:2: queue: "b200,h100" is not a queue name; use letters`},
	{name: "queue with a blank", text: "queue: b 200\n", err: `f.yaml:1: queue: "b 200" is not a queue name`},
	{name: "unknown field in a template", text: "queue: x-{gpus}\n", err: "queue: {gpus} is not a field; write {vendor}, {gpu}, {shape}, {index}, {node}"},
	{name: "key twice", text: "queue: a\nqueue: b\n", err: `f.yaml:2: key "queue" is set twice, first in line 1`},
	{name: "two documents", text: "queue: a\n---\nqueue: b\n", err: "more than one YAML document"},
	{name: "not YAML", text: "queue: [\n", err: "f.yaml:"},
	{name: "GPU twice", text: "gpus: [1, 1]\n", err: "f.yaml:1: gpus: GPU 1 is listed twice"},
	{name: "no GPU", text: "gpus: [x]\n", err: `f.yaml:1: gpus: "x" is not a GPU`},
	{name: "zero GPUs", text: "gpus: 0\n", err: "f.yaml:1: gpus: 0 may be a number of GPUs or a GPU"},
	{name: "number or GPU", text: "queue: a\ngpus: 4\n", err: "f.yaml:2: gpus: 4 may be a number of GPUs or a GPU; write gpu_count: 4 for four"},
	{name: "negative", text: "cpus_per_slot: -1\n", err: "f.yaml:1: cpus_per_slot: -1 is negative"},
	{name: "unanchored pattern", text: "agent:\n  allowed_repositories: ['github.com/x']\n", err: `f.yaml:2: agent.allowed_repositories: "github.com/x" matches anywhere in a name; write '^github\.com/x$'`},
	{name: "a pattern of a shell", text: "job:\n  allowed_images: ['*/kernelbot']\n", err: `f.yaml:2: job.allowed_images: "*/kernelbot" is not a regular expression; write '^.*/kernelbot$'`},
	{name: "no pattern at all", text: "job:\n  allowed_images: ['^a(b$']\n", err: `f.yaml:2: job.allowed_images: "^a(b$" is not a regular expression; write one such as ^name-[a-z]+$: error parsing`},
	{name: "own tag", text: "agent:\n  tags: [queue=x]\n", err: `kbnode sets the tag "queue"`},
	{name: "image without a tag", text: "image:\n  name: ghcr.io/a/b\n", err: `f.yaml:2: image.name: "ghcr.io/a/b" is not an image name with a tag`},
	{name: "image by digest", text: "image: {name: 'a/b@sha256:00'}\n", err: "is not an image name with a tag"},
	{name: "update that never comes", text: "image: {auto_update: '0 25 * * *'}\n", err: `image.auto_update: "25" cannot be the hour`},
	{name: "no update", text: "image: {auto_update: off}\n", want: Config{Image: Image{AutoUpdate: "off"}}},
	{name: "metrics on all addresses", text: "metrics: {listen: '[::]:9700'}\n", want: Config{Metrics: Metrics{Listen: "[::]:9700"}}},
	{name: "metrics by name", text: "metrics:\n  listen: localhost:9700\n", err: `f.yaml:2: metrics.listen: "localhost:9700" is not an IP address and a port; write both, such as 127.0.0.1:9700`},
	{name: "metrics without an address", text: "metrics: {listen: ':9700'}\n", err: "is not an IP address and a port"},
	{name: "metrics on no port", text: "metrics: {listen: '127.0.0.1:0'}\n", err: "is not an IP address and a port"},
	{name: "metrics in a relative directory", text: "metrics: {textfile: node_exporter}\n", err: `f.yaml:1: metrics.textfile: "node_exporter" is not an absolute path; write the directory of node_exporter's --collector.textfile.directory`},
	{name: "patterns that are no list", text: "job: {allowed_images: ^a$}\n", err: `"^a$" is not a list; write one such as [a, b]`},
	{name: "no hygiene", text: "hygiene: {disabled: true}\n", want: Config{Hygiene: Hygiene{Disabled: true}}},
	{name: "a time limit without a unit", text: "job: {time_limit: 7200}\n", err: `f.yaml:1: job.time_limit: "7200" is not a time limit; write at least a minute, such as 90m, 2h or 1h30m, or none`},
	{name: "a hook by its name", text: "job:\n  prolog: slot-prolog\n", err: `f.yaml:2: job.prolog: "slot-prolog" is not a plain absolute path; write one such as /usr/local/sbin/slot-prolog`},
	{name: "hooks without an end", text: "job: {hook_time_limit: none}\n", err: `f.yaml:1: job.hook_time_limit: "none" is not a time limit of a hook; write one from 1s to 10m, such as 90s`},
	{name: "a prolog of a job's time", text: "job: {prolog: /opt/p, time_limit: 5m, hook_time_limit: 300s}\n", err: `f.yaml:1: job.hook_time_limit: 300s is not less than the 5m of job.time_limit, of which the prolog is part; write less, or raise job.time_limit`},
	{name: "a prolog of a job's time by default", text: "job: {prolog: /opt/p, time_limit: 1m}\n", err: `job.hook_time_limit: 1m is not less than the 1m of job.time_limit`},
	{name: "an epilog, which is not part of it", text: "job: {epilog: /opt/e, time_limit: 1m}\n", want: Config{Job: Job{Epilog: "/opt/e", TimeLimit: "1m"}}},
	{name: "a prolog of a job of any length", text: "job: {prolog: /opt/p, time_limit: none}\n", want: Config{Job: Job{Prolog: "/opt/p", TimeLimit: "none"}}},
	{name: "clocks in MHz", text: "hygiene: {clocks: 1410}\n", want: Config{Hygiene: Hygiene{Clocks: "1410"}}},
	{name: "clocks by another word", text: "hygiene:\n  clocks: max\n", err: `f.yaml:2: hygiene.clocks: "max" is not a clock setting; write default, base or a number of MHz such as 1410`},
	{name: "clocks in GHz", text: "hygiene: {clocks: 1.4}\n", err: `"1.4" is not a clock setting`},
	{name: "clocks in octal", text: "hygiene: {clocks: 01410}\n", err: `"01410" is not a clock setting`},
	{name: "download without checksum", text: "agent:\n  download_url: https://mirror.example/a.tgz\n", err: "needs agent.download_sha256"},
	{name: "all errors at once", text: "queue: a b\ncpus_per_slot: -1\n", err: "f.yaml:1: queue: \"a b\" is not a queue name; use letters, digits, '-', '_' and '.', such as b200 or nvidia-h100-{index}"},
}

func TestParse(t *testing.T) {
	t.Parallel()
	for _, tt := range parseCases {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got, err := Parse("f.yaml", []byte(tt.text))
			must.Err(t, err, tt.err)
			must.Equal(t, tt.want, got)
		})
	}
}

func TestSizes(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]Size{
		"32GiB": 32 << 30, "32G": 32 << 30, "32g": 32 << 30, "512MiB": 512 << 20, "1T": 1 << 40,
		"34359738368B": 32 << 30, "1.5GiB": 3 << 29, "64 GiB": 64 << 30, "100B": 100,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v; want %d", in, got, err, want)
		}
		again, err := ParseSize(got.String())
		if err != nil || again != got {
			t.Errorf("%d is written as %q, which reads as %d, %v", got, got, again, err)
		}
	}
	for in, want := range map[string]string{
		"": "is not a size", "GiB": "is not a size", "-1G": "is not a size", "8GB": `"8GB" is not a size; write "8GiB"`, "1e9": "is not a size",
		"99999999999999999999": "is not a size", "9999999999T": "is out of range", "0B": `"0B" is not a size; write one above 0`, "0.0 g": "or leave it out for the default", "0GB": "write one above 0", "1 G iB": "is not a size",
		"32": `"32" has no unit; write 32GiB`, "1.5": `"1.5" has no unit; write 1.5GiB`, "0": `"0" is not a size; write one above 0`,
		"34359738368": `"34359738368" has no unit; write 32GiB`, "100000000001": `"100000000001" has no unit; write 100000000001B`,
	} {
		if got, err := ParseSize(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSize(%q) = %d, %v; want %s", in, got, err, want)
		}
	}
}

func TestFromEnv(t *testing.T) {
	t.Parallel()
	env := map[string]string{"GPU_TYPE": "b200", "NODE_NAME": "box", "GPU_COUNT": "4", "CPUS_PER_GPU": "16", "RAM_PER_GPU": "144"}
	got, err := FromEnv(func(k string) string { return env[k] })
	must.Do(t, err)
	want := Config{Queue: "b200", Node: "box", GPUCount: 4, CPUsPerSlot: 16, MemoryPerSlot: 144 << 30}
	must.Equal(t, want, got)
	for name, value := range map[string]string{"GPU_COUNT": "x", "CPUS_PER_GPU": "0", "RAM_PER_GPU": "lots", "GPU_TYPE": "a,b"} {
		_, err := FromEnv(func(k string) string {
			if k == name {
				return value
			}
			return ""
		})
		if err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s=%s: error is %v; want one that names the variable", name, value, err)
		}
	}
}

// fill sets every field below v to something that is not its zero value.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for _, f := range v.Fields() {
			fill(f)
		}
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(7 << 20)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0))
	}
}

func TestMergeTakesEveryField(t *testing.T) {
	t.Parallel()
	var full Config
	fill(reflect.ValueOf(&full).Elem())
	must.Equal(t, full, Merge(Config{}, full))
	must.Equal(t, full, Merge(full, Config{}))
}

// TestMergeOfShapes goes from GPUs to none and back, as install does over its own file.
func TestMergeOfShapes(t *testing.T) {
	t.Parallel()
	pairs := Config{GPUs: GPUs{All: true}, GPUsPerSlot: 2, Groups: Groups{{"0", "1"}}}
	none := Config{GPUs: GPUs{None: true}, Slots: 4}
	must.Equal(t, none, Merge(pairs, none))
	must.Equal(t, pairs, Merge(none, pairs))
	if both := Merge(none, Config{GPUsPerSlot: 2}); len(Validate(both)) == 0 {
		t.Error("pairs of no GPUs are well")
	}
}

// TestMergeOfCounts checks that GPUs of one layer, by number or by name, override both of
// the layer below.
func TestMergeOfCounts(t *testing.T) {
	t.Parallel()
	some, four, all := Config{GPUs: GPUs{List: []string{"1", "5"}}}, Config{GPUCount: 4}, Config{GPUs: GPUs{All: true}}
	for _, over := range []Config{some, four, all} {
		for _, base := range []Config{some, four, all} {
			if diff := cmp.Diff(over, Merge(base, over)); diff != "" {
				t.Errorf("%v over %v: %s", over, base, diff)
			}
		}
	}
}

// TestNetworksWarning checks files with addresses that no job reaches.
func TestNetworksWarning(t *testing.T) {
	t.Parallel()
	for list, want := range map[string]string{
		"10.1.2.0/24, '10.1.2.3:5000'":                      "",
		"10.1.0.0, '10.1.2.0:80', 10.1.2.0/32, 10.1.2.3":    "job.allowed_networks: 10.1.0.0 is one address; write 10.1.0.0/16 for the network; job.allowed_networks: 10.1.2.0:80 is one address; write 10.1.2.0/24:80 for the network",
		"10.1.2.3, 'fd00::/8', '[fd00::1]:443', '[fd00::]'": "job.allowed_networks: fd00::/8, [fd00::1]:443, [fd00::]: no job reaches an IPv6 address",
	} {
		report, err := CheckFile("f", []byte("queue: b200\njob: {network: internet, allowed_networks: ["+list+"]}\n"))
		must.Do(t, err)
		if said := strings.Join(report.Warnings, "\n"); (said == "") != (want == "") || !strings.HasPrefix(said, want) {
			t.Errorf("%s: %q", list, said)
		}
	}
}

// TestTimeWarning checks limits that end a job before its step does.
func TestTimeWarning(t *testing.T) {
	t.Parallel()
	for job, want := range map[string]string{
		"": "", "time_limit: 90m": "", "max_minutes: 5": "", "time_limit: none, max_minutes: 90": "",
		"time_limit: 1h29m59s":             "job.time_limit: 1h29m59s is less than the 90 minutes",
		"time_limit: none":                 "job.max_minutes: without a time limit, systemd kills the job of a stopping agent after 60 minutes",
		"time_limit: '0', max_minutes: 89": "job.max_minutes: without a time limit, systemd kills the job of a stopping agent after 89 minutes",
	} {
		report, err := CheckFile("f", []byte("queue: b200\njob: {"+job+"}\n"))
		must.Do(t, err)
		if said := strings.Join(report.Warnings, "\n"); (said == "") != (want == "") || !strings.HasPrefix(said, want) {
			t.Errorf("%s: %q", job, said)
		}
	}
}

func TestRenderIsReadBack(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Config{
		"empty": {},
		"list":  {Queue: "b200", GPUs: GPUs{List: []string{"0", "GPU-1f", "0000:1a:00.0"}}, MemoryPerSlot: 32 << 30},
		"count": {GPUCount: 3, Agent: Agent{Tags: []string{"a=b"}}},
		"all":   {GPUs: GPUs{All: true}, Job: Job{ShmSize: 1 << 30, CPUQuota: true}},
		"none":  {GPUs: GPUs{None: true}, Slots: 4, Reserve: Reserve{CPUs: NoThreads, Memory: 1 << 30}},
		"parts": {GPUs: GPUs{List: []string{"0:3", "GPU-1f:0"}}, GPUsPerSlot: 2, Groups: Groups{{"0", "1"}, {"0000:1a:00.0", "GPU-1f"}}},
		"MHz":   {Hygiene: Hygiene{Disabled: true, Clocks: "1410"}},
	} {
		text, err := Render(c, "Written by a test")
		must.Do(t, err)
		if !strings.HasPrefix(text, "# Written by a test\n") {
			t.Errorf("%s: %q does not open with the marker", name, text)
		}
		got, err := Parse("x", []byte(text))
		if err != nil {
			t.Errorf("%s: %v in\n%s", name, err, text)
		}
		if diff := cmp.Diff(c, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	if ps := Validate(Config{}.WithDefaults()); len(ps) > 0 {
		t.Errorf("defaults are refused: %v", ps)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("queue: a\ngpus: [0, 1]\nreserve: {memory: 8GiB}\n")
	f.Add("a: &a [*a]\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("f", []byte(text))
		if err != nil {
			return
		}
		out, err := Render(c, "m")
		must.Do(t, err)
		again, err := Parse("f", []byte(out))
		if err != nil {
			t.Fatalf("%v in %q from %q", err, out, text)
		}
		if diff := cmp.Diff(c, again); diff != "" {
			t.Errorf("%q: %s", text, diff)
		}
	})
}

// TestEmptyLists checks that an empty list allows nothing, and that a missing
// key has its default.
func TestEmptyLists(t *testing.T) {
	t.Parallel()
	c, err := Parse("f", []byte("agent: {allowed_repositories: []}\njob: {allowed_images: []}\n"))
	must.Do(t, err)
	for _, c := range []Config{c, c.WithDefaults(), Merge(c, Config{Queue: "b200"}), Merge(Config{Job: Job{AllowedImages: Patterns{"^a$"}}}, c)} {
		for name, p := range map[string]Patterns{
			"repositories": c.Agent.AllowedRepositories, "images": c.Job.AllowedImages,
		} {
			if p == nil || len(p) != 0 {
				t.Errorf("%s: %#v; want an empty list", name, p)
			}
		}
	}
	text, err := Render(c, "marker")
	must.Do(t, err)
	again, err := Parse("f", []byte(text))
	if err != nil || again.Job.AllowedImages == nil || again.Agent.AllowedRepositories == nil {
		t.Errorf("rendered and read again: %v\n%s", err, text)
	}
	if none, err := Parse("f", []byte("queue: b200\n")); err != nil || none.Job.AllowedImages != nil || len(none.WithDefaults().Agent.AllowedRepositories) == 0 {
		t.Errorf("without lists: %+v, %v", none, err)
	}
}

// TestEmptyFile checks that a file that a full disk emptied does not mean the defaults.
func TestEmptyFile(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "\n", " \n\n"} {
		if _, err := Parse("f", []byte(text)); err == nil || !strings.Contains(err.Error(), "is empty") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range [][]byte{nil, []byte("# Written by kbnode\n"), []byte("{}\n")} {
		if _, err := Parse("f", text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestNumbers refuses numbers that YAML reads differently than people, and zeros that would mean the default.
func TestNumbers(t *testing.T) {
	t.Parallel()
	const other, zero = "is not a decimal number; write it without", "is not a number above 0; write one, or leave the key out"
	for text, want := range map[string]string{
		"cpus_per_slot: 010": other, "cpus_per_slot: 0o10": other, "cpus_per_slot: 0x10": other, "cpus_per_slot: 0b11": other, "cpus_per_slot: 1_000": other, "cpus_per_slot: +8": other, "cpus_per_slot: 8": "",
		"job: {tasks_max: 010000}": other, "image: {keep: 01}": other, "gpu_count: 04": other, "gpu_count: 0x4": other, "reserve: {cpus: 010}": other, "reserve: {cpus: 00}": other, "reserve: {cpus: 0}": "",
		"gpus: [0, 010]": other, "gpus: [0x1]": other, "gpus: ['010']": "", "groups: [[0, 01]]": other, "gpus_per_slot: 02": other, "job: {max_minutes: 0o17}": other,
		"cpus_per_slot: 0": zero, "gpus_per_slot: 0": zero, "slots: 0": zero, "job: {max_minutes: 0}": zero, "job: {tasks_max: 0}": zero, "image: {keep: 0}": zero, "job: {tasks_max: -0}": zero, "cpus_per_slot:": "",
		"x: &n 010\ncpus_per_slot: *n": "", // refused for x
	} {
		_, err := Read("f", []byte("queue: a\n"+text+"\n"))
		if said := fmt.Sprint(err); want != "" && !strings.Contains(said, want) || want == "" && err != nil && !strings.Contains(text, "&") {
			t.Errorf("%s: %s", text, said)
		}
	}
	for _, name := range []string{"GPU_COUNT", "CPUS_PER_GPU"} {
		for value, fine := range map[string]bool{"8": true, "010": false, "0": false, "0x8": false, "+8": false} {
			if _, err := FromEnv(func(n string) string { return map[string]string{name: value}[n] }); (err == nil) != fine {
				t.Errorf("%s=%s: %v", name, value, err)
			}
		}
	}
}
