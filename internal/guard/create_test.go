package guard

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/moby/moby/api/types/container"
	"golang.org/x/tools/txtar"

	"github.com/gpu-mode/kbnode/internal/plan"
)

const worktree = "/var/lib/buildkite-agent/gpu-0/builds/node-gpu0/org/eval"

func testPolicy() plan.JobPolicy {
	return plan.JobPolicy{
		WrittenBy: "kbnode", Slot: 0, Name: "gpu0", User: "kbnode-gpu0", Slice: "buildkite-gpu0.slice",
		CPUs: "2-3,10-11", MemoryNodes: "0", MemoryBytes: 32 << 30, PidsLimit: 4096, ShmBytes: 8 << 30,
		Vendor: "nvidia", GPUs: []plan.PolicyGPU{{UUID: "GPU-11111111-2222-3333-4444-555555555555", PCI: "0000:1b:00.0"}},
		CDIDevices:   []string{"nvidia.com/gpu=GPU-11111111-2222-3333-4444-555555555555"},
		Env:          []string{"KERNELBOT_GPU_INDEX=0", "NVIDIA_VISIBLE_DEVICES=GPU-11111111-2222-3333-4444-555555555555"},
		DropEnv:      []string{"LD_*", "CUDA_VISIBLE_DEVICES"},
		WorkRoot:     "/var/lib/buildkite-agent/gpu-0",
		Binary:       "/usr/bin/kbnode",
		DockerSocket: "/var/run/docker.sock",
		Socket:       "/run/kbnode/gpu0/docker.sock",
	}
}

// testFacts returns facts that resolve without a file system: everything below the work root
// exists.
func testFacts() facts {
	return facts{
		resolve: func(path string) (string, error) {
			if !strings.HasPrefix(path, testPolicy().WorkRoot+"/") {
				return "", fmt.Errorf("%q: a job can mount only what is below the work root", path)
			}
			return path, nil
		},
		gids: func([]string) []string { return []string{"44", "993"} }, named: []string{"39"},
		present: func(nodes []string) []string {
			return slices.DeleteFunc(slices.Clone(nodes), func(n string) bool { return n == "/dev/nvidia-uvm" })
		},
		user: "990:980",
	}
}

var update = flag.Bool("update", false, "write the golden files")

// TestRebuild compares what the engine gets with testdata/create/*.txtar, which contain the
// policy's changes, the request and the rebuilt request of each case.
func TestRebuild(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/create/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no golden files: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			archive, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			policy := testPolicy()
			var request []byte
			want := map[string]string{}
			for _, f := range archive.Files {
				switch f.Name {
				case "policy.json":
					if err := json.Unmarshal(f.Data, &policy); err != nil {
						t.Fatal(err)
					}
				case "request.json":
					request = f.Data
				default:
					want[f.Name] = string(f.Data)
				}
			}
			got, err := rebuild(policy, testFacts(), request)
			if err != nil {
				t.Fatalf("refused: %v", err)
			}
			var text bytes.Buffer
			enc := json.NewEncoder(&text)
			enc.SetIndent("", "  ")
			enc.SetEscapeHTML(false)
			if err := enc.Encode(got); err != nil {
				t.Fatal(err)
			}
			if *update {
				archive.Files = append(archive.Files[:len(archive.Files)-len(want)], txtar.File{Name: "engine.json", Data: text.Bytes()})
				if err := os.WriteFile(file, txtar.Format(archive), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(want["engine.json"], text.String()); diff != "" {
				t.Errorf("the engine gets something else (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRebuildRefuses(t *testing.T) {
	t.Parallel()
	host := func(fields string) string { return `{"Image":"i","HostConfig":{` + fields + `}}` }
	for name, row := range map[string]struct{ body, want string }{
		"no image":                    {`{"Cmd":["true"]}`, "a container needs an Image"},
		"an image that is a path":     {`{"Image":"../../containers/x"}`, "Image: "},
		"an image with a hidden path": {`{"Image":"a/../../info"}`, "Image: "},
		"privileged":                  {host(`"Privileged":true`), "HostConfig.Privileged: a job's container cannot be privileged"},
		"privileged as a number":      {host(`"Privileged":1`), "HostConfig.Privileged"},
		"lower-case host config": {`{"Image":"i","HostConfig":{"Privileged":false},"hostconfig":{"Privileged":true}}`,
			"hostconfig: write HostConfig"},
		"lower-case field":              {host(`"privileged":true`), "HostConfig.privileged: write Privileged"},
		"lower-case field of no value":  {host(`"privileged":false`), "HostConfig.privileged: write Privileged"},
		"field in letters that fold":    {host(`"Moun` + "t\u017f" + `":[]`), "write Mounts"},
		"field twice":                   {host(`"Privileged":false,"Privileged":true`), `duplicate key "Privileged"`},
		"field twice by escape":         {host(`"Privileged":false,"Privil\u0065ged":true`), `duplicate key "Privileged"`},
		"label twice":                   {`{"Image":"i","Labels":{"a":"1","a":"2"}}`, `duplicate key "a"`},
		"unknown field":                 {host(`"Teleport":"host"`), "HostConfig.Teleport: not an option that a job may set"},
		"unknown field at the top":      {`{"Image":"i","Healthcheck":{"Test":["CMD","x"]}}`, "Healthcheck: not an option"},
		"unknown nested value":          {host(`"Teleport":{"a":[0,{"b":"x"}]}`), "HostConfig.Teleport"},
		"capabilities":                  {host(`"CapAdd":["SYS_ADMIN"]`), "HostConfig.CapAdd"},
		"unconfined seccomp":            {host(`"SecurityOpt":["seccomp=unconfined"]`), "HostConfig.SecurityOpt"},
		"new privileges":                {host(`"SecurityOpt":["no-new-privileges:false"]`), "HostConfig.SecurityOpt"},
		"host PID namespace":            {host(`"PidMode":"host"`), "HostConfig.PidMode: a job cannot share a namespace"},
		"neighbour's PID namespace":     {host(`"PidMode":"container:abc"`), "HostConfig.PidMode"},
		"host IPC namespace":            {host(`"IpcMode":"host"`), "HostConfig.IpcMode"},
		"shareable IPC namespace":       {host(`"IpcMode":"shareable"`), "HostConfig.IpcMode"},
		"host UTS namespace":            {host(`"UTSMode":"host"`), "HostConfig.UTSMode"},
		"host user namespace":           {host(`"UsernsMode":"host"`), "HostConfig.UsernsMode"},
		"host cgroup namespace":         {host(`"CgroupnsMode":"host"`), "HostConfig.CgroupnsMode"},
		"host network":                  {host(`"NetworkMode":"host"`), `HostConfig.NetworkMode: a job's network must be "bridge" or "none"`},
		"neighbour's network":           {host(`"NetworkMode":"container:abc"`), "HostConfig.NetworkMode"},
		"network as a list":             {host(`"NetworkMode":["host"]`), "HostConfig.NetworkMode"},
		"network by endpoint":           {`{"Image":"i","NetworkingConfig":{"EndpointsConfig":{"other":{}}}}`, "EndpointsConfig"},
		"address on the bridge":         {`{"Image":"i","NetworkingConfig":{"EndpointsConfig":{"bridge":{"IPAMConfig":{"IPv4Address":"172.17.0.9"}}}}}`, "cannot set addresses"},
		"device rules":                  {host(`"DeviceCgroupRules":["a *:* rwm"]`), "HostConfig.DeviceCgroupRules"},
		"volumes of others":             {host(`"VolumesFrom":["abc"]`), "HostConfig.VolumesFrom"},
		"volume driver":                 {host(`"VolumeDriver":"nfs"`), "HostConfig.VolumeDriver"},
		"anonymous volume":              {`{"Image":"i","Volumes":{"/data":{}}}`, "Volumes: a job cannot have volumes"},
		"sysctls":                       {host(`"Sysctls":{"net.ipv4.ip_forward":"1"}`), "HostConfig.Sysctls"},
		"storage options":               {host(`"StorageOpt":{"size":"1T"}`), "HostConfig.StorageOpt"},
		"ports":                         {host(`"PortBindings":{"80/tcp":[{"HostPort":"80"}]}`), "HostConfig.PortBindings"},
		"all ports":                     {host(`"PublishAllPorts":true`), "HostConfig.PublishAllPorts"},
		"links":                         {host(`"Links":["abc:x"]`), "HostConfig.Links"},
		"no OOM killer":                 {host(`"OomKillDisable":true`), "HostConfig.OomKillDisable"},
		"real-time priority":            {host(`"Ulimits":[{"Name":"rtprio","Soft":99,"Hard":99}]`), "rtprio"},
		"a limit of another shape":      {host(`"Ulimits":["nofile=1"]`), "not an object"},
		"annotations":                   {host(`"Annotations":{"a":"b"}`), "HostConfig.Annotations"},
		"named volume":                  {host(`"Binds":["data:/data"]`), "a job cannot have volumes"},
		"bind of the host's root":       {host(`"Binds":["/:/host"]`), "a job can mount only what is below"},
		"bind of the engine's socket":   {host(`"Binds":["/var/run/docker.sock:/var/run/docker.sock"]`), "a job can mount only what is below"},
		"bind of the work root itself":  {host(`"Binds":["/var/lib/buildkite-agent/gpu-0:/x"]`), "a job can mount only what is below"},
		"bind with dots":                {host(`"Binds":["` + worktree + `/../../../../gpu-1:/x"]`), "must not contain .. elements"},
		"bind to dots":                  {host(`"Binds":["` + worktree + `:/x/../proc"]`), "must be an absolute path and contain no .. elements"},
		"bind over kbnode":              {host(`"Binds":["` + worktree + `/fake:/usr/local/bin/kbnode"]`), "kbnode is mounted there"},
		"bind over /dev/shm":            {host(`"Binds":["/dev/shm:/dev/shm"]`), "set shm-size (docker run --shm-size)"},
		"the host's IPC namespace":      {host(`"IpcMode":"host"`), "set shm-size for more"},
		"bind over /proc":               {host(`"Binds":["` + worktree + `:/proc/sys"]`), "cannot mount over /proc"},
		"bind over the root":            {host(`"Binds":["` + worktree + `:/"]`), "over the container's root"},
		"bind with shared propagation":  {host(`"Binds":["` + worktree + `:/x:rshared"]`), `the mode must be "ro" or "rw"`},
		"bind with too many colons":     {host(`"Binds":["` + worktree + `:/x:ro:/y"]`), "is not source:target"},
		"mount of the host's root":      {host(`"Mounts":[{"Type":"bind","Source":"/","Target":"/x"}]`), "a job can mount only what is below"},
		"mount with shared propagation": {host(`"Mounts":[{"Type":"bind","Source":"` + worktree + `","Target":"/x","BindOptions":{"Propagation":"rshared"}}]`), "share mounts"},
		"mount of a volume":             {host(`"Mounts":[{"Type":"volume","Source":"v","Target":"/x"}]`), "cannot use mounts of type"},
		"mount of a volume with a device": {host(`"Mounts":[{"Type":"volume","Target":"/x","VolumeOptions":{"DriverConfig":{"Options":{"type":"ext4","device":"/dev/sda1"}}}}]`),
			"VolumeOptions: not an option"},
		"mount of an image":           {host(`"Mounts":[{"Type":"image","Source":"i","Target":"/x"}]`), "cannot use mounts of type"},
		"mount with two types":        {host(`"Mounts":[{"Type":"tmpfs","type":"bind","Source":"/","Target":"/x"}]`), "type: write Type"},
		"tmpfs over /dev":             {host(`"Tmpfs":{"/dev":""}`), "cannot mount over /dev"},
		"tmpfs with foreign options":  {host(`"Tmpfs":{"/x":"size=1g,uid=0,lowerdir=/"}`), "not a tmpfs option"},
		"environment without a name":  {`{"Image":"i","Env":["=x"]}`, "has no name"},
		"environment of numbers":      {`{"Image":"i","Env":[1]}`, "not a list of strings"},
		"memory as a word":            {host(`"Memory":"1g"`), "not a number"},
		"memory beyond 64 bits":       {host(`"Memory":1e400`), "whole number"},
		"NUL in a command":            {`{"Image":"i","Cmd":["a\u0000b"]}`, "NUL"},
		"nested deeply":               {`{"Image":"i","X":` + strings.Repeat("[", 5000) + strings.Repeat("]", 5000) + `}`, "nested more than 12 levels deep; send what Docker's own client sends"},
		"many values":                 {`{"Image":"i","Cmd":[` + strings.Repeat(`"",`, 60000) + `""]}`, "more than 50000 values"},
		"larger than three megabytes": {`{"Image":"i","Cmd":["` + strings.Repeat("a", 3<<20) + `"]}`, "larger than"},
		"a list":                      {`[]`, "not a JSON object"},
		"nothing":                     {``, "not JSON"},
		"two objects":                 {`{"Image":"i"}{"HostConfig":{"Privileged":true}}`, "unexpected data after"},
		"not UTF-8":                   {"{\"Image\":\"i\",\"Cmd\":[\"\xff\"]}", "not UTF-8"},
		"an end that is missing":      {`{"Image":"i"`, "not JSON"},
		"host config that is a list":  {`{"Image":"i","HostConfig":[]}`, "HostConfig: not an object"},
		"a group with a path":         {host(`"GroupAdd":["../x"]`), "not a group"},
		"a user with a newline":       {`{"Image":"i","User":"root\nx"}`, "User: "},
		"a stop signal with a blank":  {`{"Image":"i","StopSignal":"TERM x"}`, "StopSignal: "},
		"a relative work dir":         {`{"Image":"i","WorkingDir":"x"}`, "WorkingDir: "},
		"a capability that is a path": {host(`"CapDrop":["/x"]`), "not a capability"},
		"a system account":            {`{"Image":"i","User":"33"}`, "User: \"33\" is a system account"},
		"a system group":              {`{"Image":"i","User":"0:33"}`, "User: \"33\" is a system group"},
		"a system group beside it":    {host(`"GroupAdd":["0","998"]`), "GroupAdd: \"998\" is a system group"},
		"a system account with zeros": {`{"Image":"i","User":"000989"}`, "system account"},
		"a dynamic user":              {`{"Image":"i","User":"61184"}`, "system account"},
		"nobody by number":            {`{"Image":"i","User":"65534:65534"}`, "system account"},
		"a user beyond 31 bits":       {`{"Image":"i","User":"4294967295"}`, "system account"},
		"a user beyond 64 bits":       {`{"Image":"i","User":"18446744073709551616"}`, "system account"},
		"another slot's user":         {`{"Image":"i","User":"kbnode-gpu3"}`, "another slot's user"},
		"another slot's group":        {host(`"GroupAdd":["kbnode-gpu3"]`), "another slot's"},
		"begins in /proc":             {`{"Image":"i","WorkingDir":"/proc/self/fd/8"}`, "WorkingDir: "},
		"begins in /sys by dots":      {`{"Image":"i","WorkingDir":"/workdir/.././/sys/"}`, "cannot start below /sys"},
		"begins in /dev":              {`{"Image":"i","WorkingDir":"/dev"}`, "cannot start below /dev"},
		"a health check":              {`{"Image":"i","Healthcheck":{"Test":["NONE"],"Interval":1}}`, "Healthcheck: not an option"},
		"many labels":                 {`{"Image":"i","Labels":{` + many(129, `"l%d":""`) + `}}`, "Labels: a job can have at most 128 values"},
		"long labels":                 {`{"Image":"i","Labels":{"com.buildkite.x":"` + strings.Repeat("x", 16<<10) + `"}}`, "Labels: a job can have at most"},
		"many variables":              {`{"Image":"i","Env":[` + many(4097, `"A%d=1"`) + `]}`, "Env: a job can have at most 4096 values"},
		"long variables":              {`{"Image":"i","Env":["A=` + strings.Repeat("x", 2<<20) + `"]}`, "Env: a job can have at most"},
		"a long command":              {`{"Image":"i","Cmd":["` + strings.Repeat("x", 257<<10) + `"]}`, "Cmd: a job can have at most"},
		"many ports":                  {`{"Image":"i","ExposedPorts":{` + many(600, `"%d/tcp":{}`) + `}}`, "ExposedPorts: a job can have at most"},
		"many groups":                 {host(`"GroupAdd":[` + many(600, `"1%04d"`) + `]`), "GroupAdd: a job can have at most"},
		"many limits":                 {host(`"Ulimits":[` + many(600, `{"Name":"cpu","Soft":%d}`) + `]`), "Ulimits: a job can have at most"},
		"many mounts":                 {host(`"Tmpfs":{` + many(65, `"/t%d":""`) + `}`), "at most 64 directories"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := rebuild(testPolicy(), testFacts(), []byte(row.body))
			if err == nil {
				t.Fatalf("allowed: %+v", got)
			}
			if !strings.Contains(err.Error(), row.want) {
				t.Errorf("refused with %q, want %q in it", err, row.want)
			}
		})
	}
}

// many joins n pieces of JSON, each with its number.
func many(n int, format string) string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(list, ",")
}

// TestRebuildTakes sends requests that no bound or rule may refuse.
func TestRebuildTakes(t *testing.T) {
	t.Parallel()
	for name, body := range map[string]string{
		"the slot's user":        `{"Image":"i","User":"990:980"}`,
		"root":                   `{"Image":"i","User":"0:0"}`,
		"a name of the image's":  `{"Image":"i","User":"jovyan:users"}`,
		"an unprivileged number": `{"Image":"i","User":"1000:100","HostConfig":{"GroupAdd":["video","render","39","44","100000"]}}`,
		"no health check":        `{"Image":"i","Healthcheck":{"Test":["NONE"]}}`,
		"shared memory":          `{"Image":"i","WorkingDir":"/dev/shm/x"}`,
		"a payload in pieces":    `{"Image":"i","Env":[` + many(15, `"KERNELBOT_PAYLOAD_%d=`+strings.Repeat("x", 128<<10)+`"`) + `]}`,
	} {
		if got, err := rebuild(testPolicy(), testFacts(), []byte(body)); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if got.Healthcheck == nil || !slices.Equal(got.Healthcheck.Test, []string{"NONE"}) {
			t.Errorf("%s: the image's health check stays", name)
		}
	}
}

func TestAllowedImages(t *testing.T) {
	t.Parallel()
	policy := testPolicy()
	policy.Images = []string{}
	if _, err := rebuild(policy, testFacts(), []byte(`{"Image":"alpine"}`)); err == nil {
		t.Error("an empty list allows an image")
	}
	digest := "sha256:" + strings.Repeat("a", 64)
	policy.Images = []string{`^ghcr\.io/gpu-mode/eval(:[a-z0-9]+)?(@sha256:[0-9a-f]{64})?$`, `^python:3\.11$`, `^alpine:latest$`, `a|b`}
	for image, want := range map[string]bool{
		"ghcr.io/gpu-mode/eval":                       true,
		"ghcr.io/gpu-mode/eval:v1@" + digest:          true,
		reference("ghcr.io/gpu-mode/eval", digest):    true,
		reference("docker.io/library/python", "3.11"): true,
		"python:3.11":                true,
		"alpine":                     true, // means latest
		"b":                          true,
		"ghcr.io/gpu-mode/eval2":     false,
		"x/ghcr.io/gpu-mode/eval":    false,
		"python":                     false,
		"python:3.11-slim":           false,
		"python:3x11":                false,
		"docker.io/evil/python:3.11": false,
		digest:                       false,
		"bb":                         false,
	} {
		_, err := rebuild(policy, testFacts(), []byte(`{"Image":"`+image+`"}`))
		if (err == nil) != want || err != nil && !strings.Contains(err.Error(), "job.allowed_images") {
			t.Errorf("%s: %v", image, err)
		}
	}
}

// TestStrictByWish: a step may ask for less than the node's profile gives, never for more.
func TestStrictByWish(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		profile, body string
		strict        bool
		refused       string
	}{
		"asked for":                {"compatible", `"Env":["A=b","KBNODE_PROFILE=strict"],"User":"root","HostConfig":{"GroupAdd":["docker"],"CapDrop":["CHOWN"]}`, true, ""},
		"asked for as a string":    {"compatible", `"Env":"KBNODE_PROFILE=strict"`, true, ""},
		"not asked for":            {"compatible", `"Env":["KBNODE_PROFILES=strict"]`, false, ""},
		"asked for what there is":  {"compatible", `"Env":["KBNODE_PROFILE=compatible"]`, false, ""},
		"a way out":                {"strict", `"Env":["KBNODE_PROFILE=compatible"]`, true, ""},
		"a way out with nothing":   {"strict", `"Env":["KBNODE_PROFILE="]`, true, ""},
		"a way back":               {"compatible", `"Env":["KBNODE_PROFILE=strict","KBNODE_PROFILE=compatible"]`, true, ""},
		"a profile that is not":    {"compatible", `"Env":["KBNODE_PROFILE=Strict"]`, false, `"Strict" is not a profile; write KBNODE_PROFILE=strict`},
		"the node's other wishes":  {"compatible", `"Env":["KBNODE_PROFILE=strict"],"HostConfig":{"Privileged":true}`, false, "cannot be privileged"},
		"nothing of the variables": {"compatible", `"Env":["KBNODE_SLOT=3"]`, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			policy := testPolicy()
			policy.Profile, policy.DropEnv = row.profile, []string{"KBNODE_*"}
			got, err := rebuild(policy, testFacts(), []byte(`{"Image":"i",`+row.body+`}`))
			if row.refused != "" {
				if err == nil || !strings.Contains(err.Error(), row.refused) {
					t.Fatalf("got %v, want %q", err, row.refused)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			strict := got.User == testFacts().user && got.HostConfig.ReadonlyRootfs && slices.Contains(got.HostConfig.CapDrop, "ALL") && got.HostConfig.GroupAdd == nil &&
				slices.Contains(got.Env, "USER="+policy.User)
			if strict != row.strict || slices.ContainsFunc(got.Env, func(e string) bool { return strings.HasPrefix(e, "KBNODE_") }) {
				t.Errorf("strict is %t: user %q, %+v", strict, got.User, got.Env)
			}
		})
	}
}

func TestStrictNeedsUser(t *testing.T) {
	t.Parallel()
	policy, f := testPolicy(), testFacts()
	policy.Profile, f.user = "strict", ""
	if got, err := rebuild(policy, f, []byte(`{"Image":"i"}`)); err == nil {
		t.Errorf("a strict container would run as root: %+v", got.Config)
	}
}

func TestRebuildWithoutGPU(t *testing.T) {
	t.Parallel()
	policy := testPolicy()
	policy.CDIDevices = nil
	if got, err := rebuild(policy, testFacts(), []byte(`{"Image":"i"}`)); err == nil {
		t.Errorf("a slot without a GPU made a container: %+v", got.HostConfig)
	}
}

// TestRebuildShapes: a slot with several GPUs gives a container all of them, and one without
// gives none.
func TestRebuildShapes(t *testing.T) {
	t.Parallel()
	pair, none := testPolicy(), testPolicy()
	pair.CDIDevices = []string{"nvidia.com/gpu=GPU-a", "nvidia.com/gpu=GPU-b"}
	none.Vendor, none.GPUs, none.CDIDevices = "", nil, nil
	body := []byte(`{"Image":"i","HostConfig":{"DeviceRequests":[{"Count":-1,"Capabilities":[["gpu"]]}]}}`)
	for name, row := range map[string]struct {
		policy plan.JobPolicy
		want   []container.DeviceRequest
	}{
		"two":  {pair, []container.DeviceRequest{{Driver: "cdi", DeviceIDs: pair.CDIDevices}}},
		"none": {none, nil},
	} {
		got, err := rebuild(row.policy, testFacts(), body)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(row.want, got.HostConfig.DeviceRequests); diff != "" || len(got.HostConfig.Devices) > 0 {
			t.Errorf("%s: %s, devices %v", name, diff, got.HostConfig.Devices)
		}
	}
}

// FuzzRebuild searches for a request that gets more than its slot has.
func FuzzRebuild(f *testing.F) {
	files, err := filepath.Glob("testdata/create/*.txtar")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		archive, err := txtar.ParseFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, a := range archive.Files {
			if a.Name == "request.json" {
				f.Add(a.Data)
			}
		}
	}
	f.Add([]byte(`{"Image":"i","HostConfig":{"Privileged":true,"Binds":["/:/x"],"Mounts":[{"Type":"bind"}]}}`))
	policy := testPolicy()
	f.Fuzz(func(t *testing.T, body []byte) {
		got, err := rebuild(policy, testFacts(), body)
		if err != nil {
			return
		}
		h := got.HostConfig
		if h.Privileged || len(h.CapAdd) > 0 || len(h.DeviceCgroupRules) > 0 || len(h.Devices) > 0 || len(h.Binds) > 0 || len(h.VolumesFrom) > 0 ||
			h.PidMode != "" || h.UTSMode != "" || h.UsernsMode != "" || h.IpcMode != "private" || h.CgroupnsMode != "private" || h.Runtime != "runc" {
			t.Errorf("more than a slot's: %+v", h)
		}
		if h.CgroupParent != policy.Slice || h.CpusetCpus != policy.CPUs || h.Memory <= 0 || h.Memory > policy.MemoryBytes || h.MemorySwap != h.Memory {
			t.Errorf("not the slot's limits: %+v", h.Resources)
		}
		if diff := cmp.Diff([]string{"no-new-privileges"}, h.SecurityOpt); diff != "" {
			t.Error(diff)
		}
		if len(h.DeviceRequests) != 1 || len(h.DeviceRequests[0].DeviceIDs) != 1 || h.DeviceRequests[0].DeviceIDs[0] != policy.CDIDevices[0] {
			t.Errorf("not the slot's GPU: %+v", h.DeviceRequests)
		}
		for _, m := range h.Mounts {
			ours := m.Source == policy.Binary || m.Source == plan.AgentCopy
			if !ours && (!strings.HasPrefix(m.Source, policy.WorkRoot+"/") || strings.Contains(m.Source, "/../")) {
				t.Errorf("mounts %s", m.Source)
			}
			if ours && !m.ReadOnly {
				t.Errorf("%s can be written to", m.Source)
			}
		}
		if _, err := json.Marshal(got); err != nil {
			t.Error(err)
		}
	})
}

// TestFormsCompile finds malformed forms, which are otherwise compiled when a job first needs
// them.
func TestFormsCompile(t *testing.T) {
	t.Parallel()
	for _, f := range []form{
		hostnameForm, userForm, groupForm, signalForm, pathForm, capForm, imageForm, tmpfsForm, anything, refForm, versionForm,
	} {
		if f.MatchString("\n") {
			t.Errorf("%s admits a line break", f())
		}
	}
	for _, rt := range (&guard{}).routes() {
		for name, f := range rt.params {
			if f.MatchString("\n") {
				t.Errorf("%s %s: %s admits a line break", rt.method, rt.path, name)
			}
		}
	}
}
