// Package config is /etc/kbnode/config.yaml: parsed strictly, defaulted and
// validated. It is pure: files and the environment come in as arguments.
package config

import (
	"cmp"
	"fmt"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// Config is what the operator wants. The zero value of a field means "decide
// for me", and its comment says what is then decided.
type Config struct {
	// Queue is a Buildkite queue, or a template with {vendor}, {gpu}, {shape},
	// {index} and {node} that gives each slot its own. Default: {shape}, which is
	// the GPU's model and how much of it a slot is: b200, b200x4, b200-1g-23gb.
	Queue string `yaml:"queue,omitempty"`
	// Node names this machine in agent names and tags. Default: the host name.
	Node string `yaml:"node,omitempty"`
	// GPUs chooses the GPUs that become slots. Default: all, or the first GPUCount.
	GPUs GPUs `yaml:"gpus,omitempty"`
	// GPUCount is how many GPUs become slots; parts of a GPU count as one. Where GPUs
	// chooses as well, both must agree. Default: as many as GPUs chooses.
	GPUCount Count `yaml:"gpu_count,omitempty"`
	// GPUsPerSlot is how many whole GPUs a slot has. Default: 1.
	GPUsPerSlot int `yaml:"gpus_per_slot,omitempty"`
	// Groups are slots of several GPUs, beside those that GPUsPerSlot makes of the
	// rest. Default: none.
	Groups Groups `yaml:"groups,omitempty"`
	// Slots is the number of slots where GPUs is none; elsewhere the GPUs decide it.
	// Default: none.
	Slots int `yaml:"slots,omitempty"`
	// CPUsPerSlot is in hardware threads, of a slot with one GPU or AMD partition: one of several
	// GPUs has as many times more, and a MIG instance its part. Default: an even share.
	CPUsPerSlot int `yaml:"cpus_per_slot,omitempty"`
	// MemoryPerSlot is in bytes, of a slot with one GPU like CPUsPerSlot. Default: an
	// even share.
	MemoryPerSlot Size    `yaml:"memory_per_slot,omitempty"`
	Reserve       Reserve `yaml:"reserve,omitempty"`
	Agent         Agent   `yaml:"agent,omitempty"`
	Job           Job     `yaml:"job,omitempty"`
	Image         Image   `yaml:"image,omitempty"`
	Docker        Docker  `yaml:"docker,omitempty"`
	Metrics       Metrics `yaml:"metrics,omitempty"`
	Notify        Notify  `yaml:"notify,omitempty"`
	Loan          Loan    `yaml:"loan,omitempty"`
	Health        Health  `yaml:"health,omitempty"`
	Hygiene       Hygiene `yaml:"hygiene,omitempty"`
}

// Reserve is what stays with the system, at least.
type Reserve struct {
	CPUs   Threads `yaml:"cpus,omitempty"`
	Memory Size    `yaml:"memory,omitempty"` // bytes
}

// Agent is how the Buildkite agents run.
type Agent struct {
	// Binary is the buildkite-agent to use. Default: the one that is installed.
	Binary string `yaml:"binary,omitempty"`
	// Endpoint is Buildkite's agent API. Default: DefaultEndpoint, and PollingEndpoint for
	// agents that do not do well with streaming.
	Endpoint string `yaml:"endpoint,omitempty"`
	// DownloadURL is where the pinned agent is fetched from when none is
	// installed. Default: Buildkite's release archive.
	DownloadURL string `yaml:"download_url,omitempty"`
	// DownloadSHA256 is the archive's checksum, for an own DownloadURL.
	DownloadSHA256 string `yaml:"download_sha256,omitempty"`
	// Tags are added to those that kbnode sets.
	Tags []string `yaml:"tags,omitempty"`
	// AllowedRepositories are regular expressions. Default: DefaultRepositories.
	AllowedRepositories Patterns `yaml:"allowed_repositories,omitempty"`
}

// Job is what a job may use and how long it may take.
type Job struct {
	// Profile is how closed a job's container is. Default: ProfileCompatible.
	Profile string `yaml:"profile,omitempty"`
	// Network is what a job's container is connected to: NetworkBridge,
	// NetworkInternet or NetworkNone. Default: by the profile.
	Network string `yaml:"network,omitempty"`
	// AllowedNetworks are what jobs reach with NetworkInternet although it is private,
	// in the forms of ParseDestination. Default: none.
	AllowedNetworks []string `yaml:"allowed_networks,omitempty"`
	// AllowedImages are regular expressions of the images that a job may run.
	// Default: all.
	AllowedImages Patterns `yaml:"allowed_images,omitempty"`
	// PrivateRegistries are registries, as host or host:port, from which jobs may pull
	// although their addresses are private. The one of Image.Name is among them.
	// Default: none.
	PrivateRegistries []string `yaml:"private_registries,omitempty"`
	// MaxMinutes is how long a stopping agent may go on with its job, if that is more than
	// TimeLimit allows. Default: DefaultJobMinutes.
	MaxMinutes int `yaml:"max_minutes,omitempty"`
	// TimeLimit is how long a job may take before it is ended, such as "90m", or
	// NoLimit. Limit reads it. Default: DefaultTimeLimit.
	TimeLimit string `yaml:"time_limit,omitempty"`
	// TasksMax bounds the processes and threads of a slot. Default: DefaultTasksMax.
	TasksMax int64 `yaml:"tasks_max,omitempty"`
	// ShmSize is /dev/shm of a container, part of the slot's memory. Default:
	// a quarter of it, 8 GiB at most.
	ShmSize Size `yaml:"shm_size,omitempty"`
	// Prolog and Epilog are programs of root's that run on the node before a job's container is made and after it was
	// removed, by their absolute paths. Default: none.
	Prolog string `yaml:"prolog,omitempty"`
	Epilog string `yaml:"epilog,omitempty"`
	// HookTimeLimit is how long each of the two may take, such as "90s". HookLimit reads it. Default: DefaultHookTimeLimit.
	HookTimeLimit string `yaml:"hook_time_limit,omitempty"`
	// Disk is the size of the file system that a slot's checkouts and containers
	// write to. Default: half of the disk shared evenly, 50 GiB at most.
	Disk Size `yaml:"disk,omitempty"`
	// CPUQuota also sets cpu.max, which only adds throttling to the cpuset.
	CPUQuota bool `yaml:"cpu_quota,omitempty"`
}

// Image is the image that jobs run, and how it is kept up to date.
type Image struct {
	// Name is what pipelines call it, with its tag. Default: DefaultImage.
	Name string `yaml:"name,omitempty"`
	// AutoUpdate is when it is updated, a Schedule. Default, and Off: never.
	AutoUpdate string `yaml:"auto_update,omitempty"`
	// Keep is how many previous images stay. Default: DefaultKeep.
	Keep int `yaml:"keep,omitempty"`
}

// Updates says that kbnode itself keeps the image up to date.
func (i Image) Updates() bool { return i.AutoUpdate != "" && i.AutoUpdate != Off }

// Docker is the engine that runs the jobs.
type Docker struct {
	// Socket is the engine's own socket. Default: DefaultDockerSocket.
	Socket string `yaml:"socket,omitempty"`
}

// Metrics are what monitoring reads from the daemon.
type Metrics struct {
	// Listen is an IP address and a port. Default: the daemon serves none.
	Listen string `yaml:"listen,omitempty"`
	// Textfile is the directory of node_exporter's textfile collector. Default: the daemon writes none.
	Textfile string `yaml:"textfile,omitempty"`
}

// Notify is who is notified of events, both ways if both are set. Default: no one.
type Notify struct {
	// Command is a program, by its absolute path, and its arguments. It reads the JSON from its standard input.
	Command []string `yaml:"command,omitempty"`
	// URL is where the JSON is posted to, or the path of a file that has it.
	URL string `yaml:"url,omitempty"`
}

// Loan is how long a machine is lent.
type Loan struct {
	// Until is when slots take no more jobs, as text.ParseDate reads it. Default: never.
	Until string `yaml:"until,omitempty"`
}

// NotifyURL is an address that notifications may be posted to: without TLS only on the node itself.
var NotifyURL = lazy.Regexp(`^(https://[^\s"/]+|http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?)(/[^\s"]*)?$`)

// What an empty field means.
const (
	DefaultEndpoint      = "https://agent-edge.buildkite.com/v3"
	DefaultDockerSocket  = "/var/run/docker.sock"
	DefaultJobMinutes    = 60
	DefaultTimeLimit     = "2h"
	DefaultHookTimeLimit = "1m"
	DefaultTasksMax      = 8192
	DefaultImage         = "ghcr.io/gpu-mode/kernelbot:latest"
	DefaultKeep          = 1
)

// PollingEndpoint is Buildkite's agent API without streaming job dispatch.
const PollingEndpoint = "https://agent.buildkite.com/v3"

// Polls reports whether an endpoint is on the host of PollingEndpoint, however it is written.
func Polls(endpoint string) bool {
	u, err := url.Parse(endpoint)
	return err == nil && strings.EqualFold(u.Hostname(), "agent.buildkite.com")
}

// StepMinutes is the time limit of the steps that kbnode pipeline prints, within which each public problem of
// kernelbot can finish in every mode but profile.
const StepMinutes = 90

// Profiles of a job's container, and the networks that one may have.
const (
	// ProfileCompatible runs pipelines that install packages as root.
	ProfileCompatible = "compatible"
	// ProfileStrict has no root, no capability, no network and nothing to write
	// to but the checkout and tmpfs.
	ProfileStrict = "strict"

	// NetworkBridge has a way out to all that the node reaches, and NetworkInternet to
	// public addresses only.
	NetworkBridge   = "bridge"
	NetworkInternet = "internet"
	NetworkNone     = "none"
)

// DefaultRepositories are the repositories that kernelbot's pipelines use, by
// HTTPS or SSH; git rewrites the latter.
var DefaultRepositories = []string{
	`^(https://github\.com/|git@github\.com:|ssh://git@github\.com/)gpu-mode/[A-Za-z0-9._-]+$`,
}

// Patterns are regular expressions of what is allowed. Nil is the default; an empty list
// allows nothing.
type Patterns []string

// IsZero says that nothing was written: YAML leaves the key out then, but keeps an empty list.
func (p Patterns) IsZero() bool { return p == nil }

// Allow reports whether one of the patterns matches a name from its first to its last byte, as `^a|b$` alone
// would not demand. A pattern that is no regular expression matches nothing.
func (p Patterns) Allow(name string) bool {
	return slices.ContainsFunc(p, func(expr string) bool {
		re, err := regexp.Compile(expr)
		if err != nil {
			return false
		}
		re.Longest()
		at := re.FindStringIndex(name)
		return at != nil && at[0] == 0 && at[1] == len(name)
	})
}

// WithDefaults returns c with every field set whose default does not depend on
// the machine.
func (c Config) WithDefaults() Config {
	if !c.GPUs.None { // which gpus_per_slot contradicts
		c.GPUsPerSlot = cmp.Or(c.GPUsPerSlot, 1)
	}
	c.Agent.Endpoint = cmp.Or(c.Agent.Endpoint, DefaultEndpoint)
	if c.Agent.AllowedRepositories == nil {
		c.Agent.AllowedRepositories = DefaultRepositories
	}
	c.Job.MaxMinutes = cmp.Or(c.Job.MaxMinutes, DefaultJobMinutes)
	c.Job.TimeLimit = cmp.Or(c.Job.TimeLimit, DefaultTimeLimit)
	c.Job.HookTimeLimit = cmp.Or(c.Job.HookTimeLimit, DefaultHookTimeLimit)
	c.Job.TasksMax = cmp.Or(c.Job.TasksMax, DefaultTasksMax)
	c.Job.Profile = cmp.Or(c.Job.Profile, ProfileCompatible)
	c.Job.Network = cmp.Or(c.Job.Network, map[string]string{ProfileStrict: NetworkNone}[c.Job.Profile])
	c.Job.Network = cmp.Or(c.Job.Network, NetworkBridge)
	c.Image.Name = cmp.Or(c.Image.Name, DefaultImage)
	c.Image.Keep = cmp.Or(c.Image.Keep, DefaultKeep)
	c.Docker.Socket = cmp.Or(c.Docker.Socket, DefaultDockerSocket)
	c.Health.Repeats = cmp.Or(c.Health.Repeats, DefaultRepeats)
	c.Health.Proof = cmp.Or(c.Health.Proof, ProofEvaluation)
	c.Hygiene.Clocks = cmp.Or(c.Hygiene.Clocks, ClocksDefault)
	return c
}

// Hygiene is what is set on the machine so that timings are steady.
type Hygiene struct {
	// Disabled leaves the machine's settings alone and puts back those that were
	// changed. Default: they are set.
	Disabled bool `yaml:"disabled,omitempty"`
	// Clocks are the SM clocks that GPUs are locked to: ClocksDefault, ClocksBase
	// or a number of MHz. Default: ClocksDefault.
	Clocks string `yaml:"clocks,omitempty"`
}

// Words of Hygiene.Clocks.
const (
	ClocksDefault = "default" // not locked
	ClocksBase    = "base"    // what a GPU sustains within its power limit
)

// Bounds of a clock in MHz. Only its driver knows what a GPU supports.
const (
	minClock = 100
	maxClock = 10_000
)

// problem returns what is wrong with the clocks; "" if nothing is.
func (h Hygiene) problem() string {
	switch h.Clocks {
	case "", ClocksDefault, ClocksBase:
		return ""
	}
	if n, err := strconv.Atoi(h.Clocks); err != nil || n < minClock || n > maxClock || strconv.Itoa(n) != h.Clocks {
		return fmt.Sprintf("%q is not a clock setting; write %s, %s or a number of MHz such as 1410", h.Clocks, ClocksDefault, ClocksBase)
	}
	return ""
}
