package hostile

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
)

// create returns a request to create a container with this body.
func create(group, name string, want Want, body string) Request {
	return Request{Group: group, Name: name, Want: want, Method: http.MethodPost, Path: "/containers/create?name={name}-attack", Body: body}
}

// host returns the body of a create request with these fields of HostConfig.
func host(fields string) string {
	return `{"Image":"{image}","Cmd":["true"],"HostConfig":{` + fields + `}}`
}

// fields returns a request for each pair of a name and fields of HostConfig.
func fields(group string, want Want, pairs ...string) []Request {
	var list []Request
	for pair := range slices.Chunk(pairs, 2) {
		list = append(list, create(group, pair[0], want, host(pair[1])))
	}
	return list
}

// bodies is like fields, but with whole bodies.
func bodies(group string, want Want, pairs ...string) []Request {
	var list []Request
	for pair := range slices.Chunk(pairs, 2) {
		list = append(list, create(group, pair[0], want, pair[1]))
	}
	return list
}

// texts are bodies that the guard and the engine could read differently.
func texts() []Request {
	return bodies("json", Refused,
		"HostConfig twice", `{"Image":"{image}","HostConfig":{},"HostConfig":{"Privileged":true}}`,
		"a field twice", host(`"Privileged":false,"Privileged":true`),
		"a field twice, once with an escape", host(`"Privileged":false,"Privil\u0065ged":true`),
		"hostconfig beside HostConfig", `{"Image":"{image}","HostConfig":{"Privileged":false},"hostconfig":{"privileged":true}}`,
		"HOSTCONFIG alone", `{"Image":"{image}","HOSTCONFIG":{"Privileged":true}}`,
		"privileged in lower case", host(`"privileged":true`),
		"a letter that folds to another", host(`"Moun`+"\u017f"+`":[{"Type":"bind","Source":"/","Target":"/host"}]`),
		"a label twice", `{"Image":"{image}","Labels":{"a":"1","a":"2"}}`,
		"an unknown field", host(`"Teleport":"host"`),
		"an unknown field at the top", `{"Image":"{image}","Spec":{"Privileged":true}}`,
		"an unknown field deep down", host(`"Teleport":{"a":[0,{"b":"x"}]}`),
		"5000 nested lists", `{"Image":"{image}","X":`+strings.Repeat("[", 5000)+strings.Repeat("]", 5000)+`}`,
		"60000 values", `{"Image":"{image}","Cmd":[`+strings.Repeat(`"",`, 60000)+`""]}`,
		"four megabytes", `{"Image":"{image}","Cmd":["`+strings.Repeat("a", 4<<20)+`"]}`,
		"two objects", `{"Image":"{image}"}{"Image":"{image}","HostConfig":{"Privileged":true}}`,
		"bytes that are not UTF-8", `{"Image":"{image}","Cmd":["`+"\xff"+`"],"HostConfig":{"Privileged":true}}`,
		"a byte order mark", "\ufeff"+host(`"Privileged":true`),
		"a NUL in a field's name", host(`"Privileged\u0000":true`),
		"a NUL in a command", `{"Image":"{image}","Cmd":["a\u0000b"]}`,
		"a list", `[{"Image":"{image}"}]`,
		"a number for true", host(`"Privileged":1`),
		"a text for true", host(`"Privileged":"true"`),
		"a list for HostConfig", `{"Image":"{image}","HostConfig":[{"Privileged":true}]}`,
		"a missing end", `{"Image":"{image}","HostConfig":{"Privileged":true}`,
	)
}

func privileges() []Request {
	const group = "privileges"
	return append(fields(group, Refused,
		"Privileged", `"Privileged":true`,
		"CapAdd ALL", `"CapAdd":["ALL"]`,
		"CapAdd SYS_ADMIN", `"CapAdd":["CAP_SYS_ADMIN"]`,
		"CapAdd MKNOD", `"CapAdd":["MKNOD"],"CapDrop":[]`,
		"the old field Capabilities", `"Capabilities":["CAP_SYS_ADMIN"]`,
		"seccomp unconfined", `"SecurityOpt":["seccomp=unconfined"]`,
		"a custom seccomp profile", `"SecurityOpt":["seccomp={\"defaultAction\":\"SCMP_ACT_ALLOW\"}"]`,
		"AppArmor unconfined", `"SecurityOpt":["apparmor=unconfined"]`,
		"system paths unconfined", `"SecurityOpt":["systempaths=unconfined"]`,
		"cgroups writable", `"SecurityOpt":["writable-cgroups=true"]`,
		"labels off", `"SecurityOpt":["label=disable"]`,
		"new privileges", `"SecurityOpt":["no-new-privileges:false"]`,
		"Sysctls", `"Sysctls":{"net.ipv4.ip_forward":"1","kernel.shmmax":"1"}`,
		"UsernsMode host", `"UsernsMode":"host"`,
	), fields(group, Rebuilt,
		"no masked paths", `"MaskedPaths":[],"ReadonlyPaths":[]`,
		"capabilities kept", `"CapDrop":[]`,
	)...)
}

func devices() []Request {
	const group = "devices"
	return append(fields(group, Refused,
		"rules for all devices", `"DeviceCgroupRules":["a *:* rwm"]`,
		"rules for disks", `"DeviceCgroupRules":["b 8:* rwm"]`,
		"speed limits of a disk", `"BlkioDeviceReadBps":[{"Path":"/dev/sda","Rate":1}]`,
	), fields(group, Rebuilt,
		"all GPUs", `"DeviceRequests":[{"Driver":"","Count":-1,"Capabilities":[["gpu"]]}]`,
		"another slot's GPU", `"DeviceRequests":[{"Driver":"nvidia","DeviceIDs":["{otherGPU}"],"Capabilities":[["gpu"]]}]`,
		"another slot's GPU by CDI", `"DeviceRequests":[{"Driver":"cdi","DeviceIDs":["nvidia.com/gpu={otherGPU}"]}]`,
		"all GPUs by CDI", `"DeviceRequests":[{"Driver":"cdi","DeviceIDs":["nvidia.com/gpu=all"]}]`,
		"all abilities of all GPUs", `"DeviceRequests":[{"Count":-1,"Capabilities":[["gpu","nvidia","compute","utility","graphics","video","display"]],"Options":{"visible":"all"}}]`,
		"device nodes", `"Devices":[{"PathOnHost":"/dev/nvidia1","PathInContainer":"/dev/nvidia1","CgroupPermissions":"rwm"},{"PathOnHost":"/dev/mem","PathInContainer":"/dev/mem","CgroupPermissions":"rwm"}]`,
		"all GPUs of AMD's by CDI", `"DeviceRequests":[{"Driver":"cdi","DeviceIDs":["amd.com/gpu=all","amd.com/gpu=0"]}]`,
		"render nodes", `"Devices":[{"PathOnHost":"/dev/dri","PathInContainer":"/dev/dri","CgroupPermissions":"rwm"},{"PathOnHost":"/dev/dri/renderD129","PathInContainer":"/dev/dri/renderD128","CgroupPermissions":"rwm"}]`,
		"NVIDIA's runtime", `"Runtime":"nvidia"`,
		"AMD's runtime", `"Runtime":"amd"`,
		"a runtime that is a path", `"Runtime":"/tmp/evil"`,
	)...)
}

func mounts() []Request {
	const group = "mounts"
	bind := func(source string) string { return `"Binds":["` + source + `:/host"]` }
	list := fields(group, Refused,
		"the root", bind("/"),
		"/etc", bind("/etc"),
		"/proc", bind("/proc"),
		"the engine's socket", bind("{engine}"),
		"the engine's state", bind("/var/lib/docker"),
		"the slot's own socket", bind("{socket}"),
		"the token", bind("/etc/buildkite-agent/token"),
		"another slot's directory", bind("{otherWork}"),
		"the directory of all checkouts", bind("{workRoot}"),
		"a way out of the checkout", bind("{checkout}/../../../../../../../etc"),
		"a link out of the checkout", bind("{outLink}"),
		"a way through a link", bind("{outLink}/etc"),
		"a link to another slot's directory", bind("{otherLink}"),
		"a relative path", bind("./x"),
		"a named volume", bind("{name}"),
		"nothing on the host", bind("/{name}/not/there"),
		"shared propagation", `"Binds":["{checkout}:/x:rshared"]`,
		"kernel options", `"Binds":["{checkout}:/x:suid,dev"]`,
		"too many colons", `"Binds":["{checkout}:/x:ro:/y"]`,
		"over /proc", `"Binds":["{checkout}:/proc/sys"]`,
		"over /dev by dots", `"Binds":["{checkout}:/x/../dev"]`,
		"over the container's root", `"Binds":["{checkout}:/"]`,
		"over kbnode", `"Binds":["{checkout}:/usr/local/bin/kbnode"]`,
		"Mounts of the root", `"Mounts":[{"Type":"bind","Source":"/","Target":"/host"}]`,
		"Mounts of a link out", `"Mounts":[{"Type":"bind","Source":"{outLink}","Target":"/host","ReadOnly":true}]`,
		"Mounts with shared propagation", `"Mounts":[{"Type":"bind","Source":"{checkout}","Target":"/x","BindOptions":{"Propagation":"rshared"}}]`,
		"Mounts with two types", `"Mounts":[{"Type":"tmpfs","type":"bind","Source":"/","Target":"/host"}]`,
		"a volume", `"Mounts":[{"Type":"volume","Source":"{name}","Target":"/x"}]`,
		"a volume that is the root", `"Mounts":[{"Type":"volume","Source":"{name}","Target":"/x","VolumeOptions":{"DriverConfig":{"Name":"local","Options":{"type":"none","o":"bind","device":"/"}}}}]`,
		"a volume that is a disk", `"Mounts":[{"Type":"volume","Target":"/x","VolumeOptions":{"DriverConfig":{"Name":"local","Options":{"type":"ext4","device":"/dev/sda1"}}}}]`,
		"an image", `"Mounts":[{"Type":"image","Source":"{image}","Target":"/x"}]`,
		"a named pipe", `"Mounts":[{"Type":"npipe","Source":"{engine}","Target":"/x"}]`,
		"a volume of a cluster", `"Mounts":[{"Type":"cluster","Source":"{name}","Target":"/x"}]`,
		"volumes of another container", `"VolumesFrom":["{other}"]`,
		"volumes of the slot's own container", `"VolumesFrom":["{own}:rw"]`,
		"a volume driver", `"VolumeDriver":"nfs"`,
		"a tmpfs over /dev", `"Tmpfs":{"/dev":"rw"}`,
		"a tmpfs with another's options", `"Tmpfs":{"/x":"size=1g,lowerdir=/,upperdir=/etc"}`,
	)
	return append(list,
		create(group, "an anonymous volume", Refused, `{"Image":"{image}","Volumes":{"/data":{}}}`))
}

func namespaces() []Request {
	list := fields("namespaces", Refused,
		"PidMode host", `"PidMode":"host"`,
		"PidMode of another container", `"PidMode":"container:{other}"`,
		"IpcMode host", `"IpcMode":"host"`,
		"IpcMode shareable", `"IpcMode":"shareable"`,
		"IpcMode of another container", `"IpcMode":"container:{otherName}"`,
		"UTSMode host", `"UTSMode":"host"`,
		"CgroupnsMode host", `"CgroupnsMode":"host"`,
		"Cgroup of another container", `"Cgroup":"container:{other}"`,
		"NetworkMode host", `"NetworkMode":"host"`,
		"NetworkMode of another container", `"NetworkMode":"container:{other}"`,
		"NetworkMode of the slot's own container", `"NetworkMode":"container:{own}"`,
		"another network", `"NetworkMode":"{name}"`,
		"links to another container", `"Links":["{otherName}:x"]`,
		"isolation of another system", `"Isolation":"hyperv"`,
	)
	return append(list, bodies("namespaces", Refused,
		"a second network", `{"Image":"{image}","NetworkingConfig":{"EndpointsConfig":{"host":{}}}}`,
		"an address on the bridge", `{"Image":"{image}","NetworkingConfig":{"EndpointsConfig":{"bridge":{"IPAMConfig":{"IPv4Address":"172.17.0.9"}}}}}`,
		"an alias on the bridge", `{"Image":"{image}","NetworkingConfig":{"EndpointsConfig":{"bridge":{"Aliases":["docker"],"DriverOpts":{"a":"b"}}}}}`,
		"a hardware address", `{"Image":"{image}","MacAddress":"02:42:ac:11:00:02"}`,
	)...)
}

func limits() []Request {
	const group = "limits"
	return append(fields(group, Rebuilt,
		"another slot's slice", `"CgroupParent":"{otherSlice}"`,
		"the system's slice", `"CgroupParent":"system.slice"`,
		"the root cgroup", `"CgroupParent":"/"`,
		"all CPUs and memory nodes", `"CpusetCpus":"0-4095","CpusetMems":"0-63"`,
		"a thousand CPUs", `"NanoCpus":1000000000000`,
		"CPU shares and quota", `"CpuShares":262144,"CpuPeriod":1000000,"CpuQuota":-1`,
		"more memory than there is", `"Memory":4611686018427387904,"MemoryReservation":4611686018427387904`,
		"unlimited swap", `"Memory":67108864,"MemorySwap":-1,"MemorySwappiness":100`,
		"unlimited processes", `"PidsLimit":-1`,
		"a million processes", `"PidsLimit":1000000`,
		"a terabyte of shared memory", `"ShmSize":1099511627776`,
		"never killed first", `"OomScoreAdj":-1000`,
		"unlimited open files and processes", `"Ulimits":[{"Name":"nofile","Soft":-1,"Hard":-1},{"Name":"nproc","Soft":-1,"Hard":-1},{"Name":"core","Soft":-1,"Hard":-1}]`,
		"restarted forever", `"RestartPolicy":{"Name":"always","MaximumRetryCount":0}`,
		"logs to an address", `"LogConfig":{"Type":"gelf","Config":{"gelf-address":"udp://169.254.169.254:12201"}}`,
		"logs to the host's syslog", `"LogConfig":{"Type":"syslog","Config":{"syslog-address":"unixgram:///dev/log"}}`,
		"unlimited logs", `"LogConfig":{"Type":"json-file","Config":{"max-size":"-1"}}`,
		"a file on the host", `"ContainerIDFile":"/etc/cron.d/evil"`,
	), fields(group, Refused,
		"no end by the OOM killer", `"OomKillDisable":true`,
		"real-time priority", `"Ulimits":[{"Name":"rtprio","Soft":99,"Hard":99}]`,
		"a larger layer", `"StorageOpt":{"size":"1T"}`,
		"kernel memory", `"KernelMemory":1`,
	)...)
}

func extras() []Request {
	const group = "other fields"
	list := fields(group, Refused,
		"a published port", `"PortBindings":{"80/tcp":[{"HostIp":"0.0.0.0","HostPort":"80"}]}`,
		"all ports published", `"PublishAllPorts":true`,
		"annotations", `"Annotations":{"run.oci.systemd.force_cgroup_v1":"/sys/fs/cgroup"}`,
		"names of hosts", `"ExtraHosts":["agent.buildkite.com:127.0.0.1"]`,
		"name servers", `"Dns":["8.8.8.8"]`,
	)
	list = append(list, bodies(group, Refused,
		"a health check", `{"Image":"{image}","Healthcheck":{"Test":["CMD","x"],"Interval":1000000}}`,
		"OnBuild", `{"Image":"{image}","OnBuild":["RUN x"]}`,
		"an image that is a path", `{"Image":"../../volumes"}`,
		"an image of another kind", `{"Image":"file:///etc/passwd"}`,
		"a user with a line break", `{"Image":"{image}","User":"root\nx"}`,
		"a directory of the runtime's", `{"Image":"{image}","WorkingDir":"/proc/self/fd/8"}`,
		"a directory of the kernel's by dots", `{"Image":"{image}","WorkingDir":"/tmp/../sys/fs"}`,
		"a variable without a name", `{"Image":"{image}","Env":["=x"]}`,
	)...)
	list = append(list, bodies(group, Contained, // the strict profile sets its own user and groups
		"a system account", `{"Image":"{image}","Cmd":["true"],"User":"1"}`,
		"another slot's user by name", `{"Image":"{image}","Cmd":["true"],"User":"kbnode-gpu4095"}`,
		"groups of system accounts", host(`"GroupAdd":["4","5"]`),
	)...)
	list = append(list, bodies(group, Rebuilt,
		"another slot's label", `{"Image":"{image}","Cmd":["true"],"Labels":{"kbnode.slot":"4095","com.docker.compose.project":"x"}}`,
		"variables that choose GPUs", `{"Image":"{image}","Cmd":["true"],"Env":["NVIDIA_VISIBLE_DEVICES=all","NVIDIA_DRIVER_CAPABILITIES=all","CUDA_VISIBLE_DEVICES=0,1","ROCR_VISIBLE_DEVICES=0,1","HIP_VISIBLE_DEVICES=0,1","GPU_DEVICE_ORDINAL=1","LD_PRELOAD=/x.so"]}`,
		"the agent's secrets", `{"Image":"{image}","Cmd":["true"],"Env":["BUILDKITE_AGENT_ACCESS_TOKEN=secret","BUILDKITE_AGENT_TOKEN=secret","BUILDKITE_AGENT_JOB_API_TOKEN=secret","BUILDKITE_AGENT_JOB_API_SOCKET=/x.sock","DOCKER_HOST=unix://{engine}"]}`,
	)...)
	name := create(group, "a name that is a path", Refused, `{"Image":"{image}"}`)
	name.Path = "/containers/create?name=..%2f..%2f{name}"
	platform := create(group, "a platform that is a path", Refused, `{"Image":"{image}"}`)
	platform.Path = "/containers/create?name={name}-attack&platform=..%2f..%2fx"
	unknown := create(group, "an unknown parameter", Refused, `{"Image":"{image}"}`)
	unknown.Path = "/containers/create?name={name}-attack&privileged=1"
	var labels, variables strings.Builder
	for i := range 5000 {
		fmt.Fprintf(&labels, `,"com.buildkite.l%d":""`, i)
		fmt.Fprintf(&variables, `,"A%d=1"`, i)
	}
	list = append(list, bodies(group, Refused,
		"too many labels", `{"Image":"{image}","Labels":{"a":""`+labels.String()+`}}`,
		"too many variables", `{"Image":"{image}","Env":["A=1"`+variables.String()+`]}`,
	)...)
	return append(list, name, platform, unknown)
}
