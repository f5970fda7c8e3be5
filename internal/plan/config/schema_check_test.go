package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"gopkg.in/yaml.v3"

	"github.com/gpu-mode/kbnode/test/must"
)

// readSchema returns packaging/config.schema.json, as an editor reads it.
func readSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	text := must.Read(t, schemaFile)
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	must.Do(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	must.Do(t, c.AddResource("config.schema.json", doc))
	s, err := c.Compile("config.schema.json") // checks it against its own schema
	must.Do(t, err)
	return s
}

// refusal returns what the schema says about a file in YAML; nil if it is valid.
func refusal(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	if v == nil {
		return nil // an empty file: there is nothing to validate
	}
	asJSON, err := json.Marshal(v)
	must.Do(t, err)
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(asJSON))
	must.Do(t, err)
	return s.Validate(doc)
}

// TestSchemaAgreesWithParse checks the same files with both. What only kbnode refuses is
// listed in beyond.
func TestSchemaAgreesWithParse(t *testing.T) {
	t.Parallel()
	s := readSchema(t)
	asked := map[string]bool{} // by whether Parse accepts it
	for _, c := range parseCases {
		asked[c.text] = c.err == ""
		if slices.Contains(beyondCases, c.name) {
			delete(asked, c.text)
		}
	}
	for text, taken := range moreCases {
		asked[text] = taken
		if _, err := Parse("f", []byte(text)); (err == nil) != taken {
			t.Errorf("Parse says of %q: %v", text, err)
		}
	}
	if len(asked) < 100 {
		t.Fatalf("%d files are asked of", len(asked))
	}
	for text, taken := range asked {
		if err := refusal(t, s, text); (err == nil) != taken {
			t.Errorf("the schema says of %q: %v", text, err)
		}
	}
	for _, text := range beyond {
		if _, err := Parse("f", []byte(text)); err == nil {
			t.Errorf("Parse takes %q", text)
		}
		if err := refusal(t, s, text); err != nil {
			t.Errorf("the schema refuses %q too: %v; it belongs in moreCases", text, err)
		}
	}
}

// TestSchemaTakesTheDocumentation validates what people start from.
func TestSchemaTakesTheDocumentation(t *testing.T) {
	t.Parallel()
	s := readSchema(t)
	text, _ := uncommented(t)
	examples := map[string]string{exampleFile: text}
	page := must.Read(t, "../../../docs/configuration.md")
	for _, m := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(page, -1) {
		examples[m[1]] = m[1]
		_, err := Parse("docs/configuration.md", []byte(m[1]))
		must.Do(t, err)
	}
	if len(examples) < 3 {
		t.Fatalf("docs/configuration.md has %d examples", len(examples)-1)
	}
	for name, text := range examples {
		if err := refusal(t, s, text); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		// An unknown key is refused anywhere.
		for line := range strings.Lines(text) {
			if key := regexp.MustCompile(`^( *)[a-z0-9_]+:`).FindStringSubmatch(line); key != nil {
				if err := refusal(t, s, strings.Replace(text, line, key[1]+"unheard_of: 1\n"+line, 1)); err == nil {
					t.Errorf("%s: an unknown key above %q is taken", name, line)
				}
			}
		}
	}
	// What kbnode writes itself is valid, too.
	for _, c := range parseCases {
		if c.err != "" {
			continue
		}
		shown, err := Show("f", c.want.WithDefaults())
		must.Do(t, err)
		written, err := Render(c.want, "m")
		must.Do(t, err)
		for _, text := range []string{shown.Text, written} {
			if err := refusal(t, s, text); err != nil {
				t.Errorf("%s: %v in\n%s", c.name, err, text)
			}
		}
	}
}

// TestDocumentedDefaults compares the tables of keys with the code: every key has a row, and every default that
// is a value is the one in use.
func TestDocumentedDefaults(t *testing.T) {
	t.Parallel()
	rows, page := map[string]string{}, must.Read(t, "../../../docs/configuration.md")
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z0-9_.]+)` \\| ([^|]*) \\|.*\\|$").FindAllStringSubmatch(page, -1) {
		rows[m[1]] = m[2]
	}
	must.Contain(t, page, DefaultRepositories...)
	c := Config{GPUs: GPUs{All: true}}.WithDefaults()
	value := regexp.MustCompile("^`([^`]*)`")
	eachKey(reflect.ValueOf(&c).Elem(), "", func(key string, v reflect.Value) {
		row, ok := rows[key]
		delete(rows, key)
		if !ok {
			t.Errorf("docs/configuration.md has no row for %s", key)
		}
		text, err := yaml.Marshal(v.Interface())
		must.Do(t, err)
		if m := value.FindStringSubmatch(row); m != nil && m[1] != strings.TrimSpace(string(text)) {
			t.Errorf("docs/configuration.md says that the default of %s is %s; it is %s", key, m[1], text)
		}
	})
	if len(rows) > 0 {
		t.Errorf("docs/configuration.md has rows for no key: %q", rows)
	}
}

// moreCases are files besides parseCases, by whether they are accepted.
var moreCases = map[string]bool{
	"queue: '{vendor}-{gpu}.{index}_{node}'": true, "queue: -a": false, "queue: '{gpu'": false, "queue: [a]": false, "queue: {a: b}": false,
	"queue: " + strings.Repeat("a", 100): true, "queue: " + strings.Repeat("a", 101): false,
	"node: a_b": false, "node: a.b-c": true,
	"gpus: [0, GPU-1f, '0000:1a:00.0']": true, "gpus: 0,2": true, "gpus: '0, x'": false, "gpus: []": false, "gpus: 1.5": false, "gpus: {a: 1}": false, "gpus: [10000]": false, "gpus: some": false,
	"gpus: none\nslots: 4": true, "gpus: ['0:3', 'GPU-1f:0', '1a:00.0:6']": true, "gpus: '0:x'": false, "gpus: ['0:100']": false,
	"gpus: 4": false, "gpus: '4'": true, "gpus: 4-4": true, "gpus: 0-3": true, "gpus: '0,2-3'": true, "gpus: [0-3, 6]": true, "gpus: [GPU-1f, 2-2]": true, "gpus: 0-x": false, "gpus: '-3'": false, "gpus: '0-'": false, "gpus: 0-1-2": false, "gpus: '0-3:1'": false, "gpus: 0--3": false, "gpus: [10000-10001]": false, "gpus: -1": false,
	"gpu_count: 4": true, "gpu_count: 0": false, "gpu_count: -2": false, "gpu_count: 1.5": false, "gpu_count: '4'": false, "gpu_count: all": false, "gpu_count: [4]": false, "gpu_count: {a: 4}": false, "gpu_count: 4\ngpus: 0-3": true, "gpu_count: 2\ngpus: ['0:1', '0:2', 1]": true,
	"gpus: 0-3\ngroups: [[0, GPU-1f]]": true, "gpus: [0, GPU-1f]\ngroups: [[0, 1]]": true, "gpus: [1, 2]\ngroups: [['01', 2]]": true, "gpus: ['0:1', 1]\ngroups: [[0, 1]]": true,
	"groups: [[0-3], [4-5, 7]]": true, "groups: [['0:1-2']]": false,
	"gpus_per_slot: 2": true, "gpus_per_slot: 257": false, "gpus_per_slot: -2": false, "gpus_per_slot: two": false, "slots: 257": false, "slots: 0.5": false,
	"groups: [[0, 1], ['0000:1a:00.0', GPU-1f]]": true, "groups: []": true, "groups: [0, 1]": false, "groups: [[0]]": false, "groups: [[]]": false, "groups: [[0, x]]": false, "groups: {a: [0, 1]}": false, "groups: all": false, "groups: [all]": false, "groups: [[0, 0]]": false, "groups: ['0,1']": false, "groups: [[[0, 1]]]": false,
	"queue: '{shape}'":   true,
	"cpus_per_slot: 8.5": false, "cpus_per_slot: '8'": false, "cpus_per_slot: true": false,
	"memory_per_slot: 1024": false, "memory_per_slot: 1e9": false, "memory_per_slot: 1024B": true, "memory_per_slot: 1.5 GiB": true, "memory_per_slot: 32g": true, "memory_per_slot: 32Gi": true, "memory_per_slot: 32Gb": false, "memory_per_slot: -1": false, "memory_per_slot: [1G]": false, "memory_per_slot: true": false,
	"reserve: {cpus: 0}": true, "reserve: {cpus: 1.5}": false, "reserve: {cpus: '0'}": false, "reserve: {cpus: none}": false,
	"reserve: {cpus: -1}": false, "reserve: {memory: lots}": false, "reserve:": true, "reserve: 4": false, "reserve: [cpus]": false,
	"agent: {binary: bin/agent}": false, "agent: {binary: /bin/agent}": true,
	"agent: {endpoint: ftp://h}": false, "agent: {endpoint: 'https://a b'}": false, "agent: {endpoint: http://h:1/v3}": true,
	"agent: {download_sha256: 'ab'}": false, "agent: {download_url: https://h/a}": false,
	"agent: {download_url: https://h/a, download_sha256: '" + strings.Repeat("ab", 32) + "'}": true,
	"agent: {tags: a=b}": false, "agent: {tags: [a]}": false, "agent: {tags: [a=b=c]}": false, "agent: {tags: ['a=b c']}": false, "agent: {tags: [numa=1]}": false, "agent: {tags: [numatic=1]}": true,
	"agent: {allowed_repositories: [A]}": false, "agent: {allowed_repositories: ['^A$']}": true, "agent: {allowed_repositories: ['^(A$']}": false, "agent: {allowed_repositories: ['^a{1,2}$']}": true,
	"agent: {token: secret}": false,
	"job: {profile: open}":   false, "job: {profile: strict, network: none}": true, "job: {network: host}": false,
	"job: {network: internet}": true, "job: {network: internet, allowed_networks: [10.1.2.0/24, '10.1.2.3:5000', 'fd00::/8', '[fd00::1]:443', '[fd00::/16]']}": true,
	"job: {network: internet, allowed_networks: [mirror]}": false, "job: {network: internet, allowed_networks: ['mirror:80']}": false, "job: {network: internet, allowed_networks: ['10.1.2.3:']}": false, "job: {network: internet, allowed_networks: 10.1.2.3}": false, "job: {network: internet, allowed_networks: ['10.1.2.3/24/']}": false,
	"job: {tasks_max: 63}": false, "job: {tasks_max: 64}": true, "job: {max_minutes: -5}": false, "job: {time_limit: 90m}": true, "job: {time_limit: 1h30m}": true, "job: {time_limit: none}": true, "job: {time_limit: 0}": true,
	"job: {time_limit: 7200}": false, "job: {time_limit: 1d}": false, "job: {time_limit: -1h}": false, "job: {time_limit: '2 h'}": false, "job: {time_limit: 1.5h}": false, "job: {time_limit: off}": false,
	"job: {prolog: /opt/site/prolog, epilog: /usr/local/sbin/slot-epilog_2.sh, hook_time_limit: 90s}": true, "job: {prolog: /opt/.hidden/x+y}": true, "job: {hook_time_limit: 1m30s}": true,
	"job: {prolog: sbin/prolog}": false, "job: {prolog: /}": false, "job: {prolog: /opt/}": false, "job: {prolog: /opt//x}": false, "job: {prolog: /opt/../x}": false, "job: {prolog: /opt/./x}": false, "job: {prolog: '/opt/a b'}": false,
	"job: {epilog: '/opt/$x'}": false, "job: {epilog: '/opt/a%b'}": false, "job: {epilog: [/bin/true]}": false, "job: {epilog: /" + strings.Repeat("a", 254) + "}": true, "job: {epilog: /" + strings.Repeat("a", 255) + "}": false, "job: {epilog: /opt/...}": false,
	"job: {hook_time_limit: none}": false, "job: {hook_time_limit: 60}": false, "job: {hook_time_limit: 0s}": false, "job: {hook_time_limit: 1.5m}": false, "job: {hook_time_limit: 500ms}": false,
	"job: {cpu_quota: 1}": false, "job: {cpu_quota: maybe}": false,
	"job: {disk: 268435456B}": true, "job: {disk: 256MiB}": true, "job: {disk: 268435456}": false, "job: {shm_size: 8GB}": false, "job: {allowed_images: [ghcr.io]}": false,
	"image: {name: a/b}": false, "image: {name: 'reg.example:5000/a/b:v1'}": true, "image: {name: 'A/b:c'}": false,
	"image: {name: 'my_kernelbot:latest'}": true, "image: {name: 'my_org/eval:v1'}": true, "image: {name: '_a:b'}": false, "image: {name: 'my_host:5000/a:b'}": false, "image: {keep: -1}": false,
	"image: {auto_update: '@daily'}": true, "image: {auto_update: '@noon'}": false, "image: {auto_update: '0 3 * *'}": false, "image: {auto_update: '60 3 * * *'}": false, "image: {auto_update: '0 3 1-5/2 jan,3 MON-fri'}": true, "image: {auto_update: '*/15 0-6,22 * * 7'}": true, "image: {auto_update: false}": false,
	"docker: {socket: docker.sock}": false, "docker: {socket: /run/docker.sock}": true,
	"metrics: {listen: '[::1]:9700'}": true, "metrics: {listen: 127.0.0.1}": false, "metrics: {listen: 'http://127.0.0.1:9700'}": false, "metrics: {listen: 9700}": false, "metrics: {textfile: /var/lib/node_exporter}": true, "metrics: {textfile: node_exporter}": false, "metrics: {textfile: [/a]}": false,
	"notify: {command: [/bin/page, a b, '']}": true, "notify: {command: /bin/page}": false, "notify: {command: [page]}": false, "notify: {command: [/bin/page, 1]}": true, "notify: {command: [/bin/page, [a]]}": false, "notify: {command: []}": true,
	"notify: {url: 'https://hooks.example/services/T0/B0/secret?a=b'}": true, "notify: {url: 'https://hooks.example'}": true, "notify: {url: 'http://127.0.0.1:9/x'}": true, "notify: {url: 'http://[::1]/x'}": true, "notify: {url: /etc/kbnode/notify-url}": true,
	"loan: {until: 2026-12-31}": true, "loan: {until: '2026-12-31T18:00'}": true, "loan: {until: '2026-12-31 18:00'}": true, "loan: {until: '2026-12-31T18:00:00+01:00'}": true, "loan: {until: '2026-12-31T18:00:00Z'}": true,
	"loan: {until: tomorrow}": false, "loan: {until: 31.12.2026}": false, "loan: {until: 3d}": false, "loan: {until: '2026-12-31T18'}": false, "loan: {end: 2026-12-31}": false,
	"notify: {url: 'http://hooks.example/x'}": false, "notify: {url: 'http://localhost@hooks.example/x'}": false, "notify: {url: 'http://localhost:80@hooks.example/x'}": false, "notify: {url: 'http://127.0.0.1.example/'}": false, "notify: {url: 'https:///x'}": false, "notify: {url: 'https://a b'}": false, "notify: {url: notify-url}": false,
	"health: {watch_only: true, xids: [63=drain@3/24h, 48=ignore, 999=park], repeats: 20/9999h}": true, "health: {repeats: none}": true, "health: {repeats: 3}": false, "health: {repeats: 21/24h}": false, "health: {repeats: 0/24h}": false, "health: {repeats: 3/7d}": false,
	"health: {proof: evaluation}": true, "health: {proof: none}": true, "health: {proof: true}": false, "health: {proof: None}": false, "health: {proof: [none]}": false,
	"health: {xids: [63]}": false, "health: {xids: [63=reboot]}": false, "health: {xids: [63=warn@3/24h]}": false, "health: {xids: ['63=drain@3/24h ']}": false, "health: {xids: {x: drain}}": false, "health: {watch_only: 1}": false, "health: {xids: [079=drain]}": false,
	"hygiene: {clocks: 99}": false, "hygiene: {clocks: 100}": true, "hygiene: {clocks: 10001}": false, "hygiene: {clocks: '1410'}": true, "hygiene: {clocks: 10000}": true, "hygiene: {clocks: 20000}": false, "hygiene: {disabled: 'true'}": false,
}

// beyondCases are those of parseCases that only a parser can refuse, by name.
var beyondCases = []string{
	"two documents", "key twice", "clocks in octal", "a prolog of a job's time", "a prolog of a job's time by default",
	"range backward", "range without end", "GPU in two ranges", "count against choice",
}

// beyond are more files that only kbnode refuses.
var beyond = []string{
	"queue: a\n---\n",
	"gpus: [1, '1']", // equal, to kbnode
	"gpus: 0-256",
	"groups: [[2-2]]",
	"gpu_count: 4\ngpus: [0, 1]",
	"gpu_count: 4\ngpus: none\nslots: 4",
	"gpus: none", // and no slots
	"gpus: none\nslots: 2\ngpus_per_slot: 2",
	"groups: [[0, 1], [1, 2]]",
	"gpus: 0-3\ngroups: [[3, 4]]",
	"memory_per_slot: 0GiB", // arithmetic, here and below
	"job: {disk: 255MiB}",
	"job: {time_limit: 59s}",
	"job: {time_limit: 9000h}",
	"job: {hook_time_limit: 601s}",
	"job: {hook_time_limit: 1h}",
	"job: {prolog: /opt/p, time_limit: 5m, hook_time_limit: 5m}",
	"image: {auto_update: '0 5-3 * * *'}",
	"image: {auto_update: '0 3 * foo *'}",
	"job: {network: internet, allowed_networks: [10.1.2.300]}",
	"job: {network: internet, allowed_networks: [10.1.2.0/33]}",
	"job: {network: internet, allowed_networks: ['10.1.2.0:0']}",
	"job: {network: internet, allowed_networks: ['10.1.2.0:65536']}",
	"job: {network: internet, allowed_networks: [0.0.0.0/0]}",
	"job: {network: internet, allowed_networks: [127.0.0.1]}",
	"job: {network: internet, allowed_networks: [169.254.169.254]}",
	"job: {network: internet, allowed_networks: ['fe80::/10']}",
	"job: {network: internet, allowed_networks: ['::ffff:10.0.0.1']}",
	"metrics: {listen: '300.0.0.1:9700'}",
	"metrics: {listen: '127.0.0.1:99999'}",
}
