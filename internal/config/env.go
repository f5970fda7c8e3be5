package config

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// variables are the environment variables of the scripts that kbnode replaces, by the
// key that each sets.
var variables = map[string]string{
	"queue": "GPU_TYPE", "node": "NODE_NAME", "gpu_count": "GPU_COUNT", "cpus_per_slot": "CPUS_PER_GPU", "memory_per_slot": "RAM_PER_GPU",
}

// FromEnv reads the environment variables of the scripts that kbnode replaces.
// get is os.Getenv or a stand-in for it.
func FromEnv(get func(string) string) (Config, error) {
	var c Config
	var errs []error
	number := func(name string) int {
		s := strings.TrimSpace(get(name))
		if s == "" {
			return 0
		}
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			errs = append(errs, fmt.Errorf("%s=%s is not a number above 0; write one, or unset it", name, s))
		}
		return n
	}
	c.Queue = get("GPU_TYPE")
	c.Node = get("NODE_NAME")
	c.GPUCount = Count(number("GPU_COUNT"))
	c.CPUsPerSlot = number("CPUS_PER_GPU")
	if s := strings.TrimSpace(get("RAM_PER_GPU")); s != "" {
		if _, err := strconv.Atoi(s); err == nil {
			s += "GiB" // the old scripts took GB without a unit
		}
		size, err := ParseSize(s)
		if err != nil {
			errs = append(errs, fmt.Errorf("RAM_PER_GPU: %w", err))
		}
		c.MemoryPerSlot = size
	}
	if len(errs) > 0 {
		return Config{}, errors.Join(errs...)
	}
	for _, p := range Validate(c) {
		errs = append(errs, fmt.Errorf("%s: %s", variables[p.Key], p.Text))
	}
	return c, errors.Join(errs...)
}

// Merge returns base, overridden by every field that over sets.
func Merge(base, over Config) Config {
	base.Queue = or(over.Queue, base.Queue)
	base.Node = or(over.Node, base.Node)
	if !over.GPUs.IsZero() || over.GPUCount != 0 { // either overrides both
		base.GPUs, base.GPUCount = over.GPUs, over.GPUCount
		if base.GPUs.None { // drop what applies to the other kind of machine
			base.GPUsPerSlot, base.Groups = 0, nil
		} else {
			base.Slots = 0
		}
	}
	base.GPUsPerSlot = or(over.GPUsPerSlot, base.GPUsPerSlot)
	base.Slots = or(over.Slots, base.Slots)
	if len(over.Groups) > 0 {
		base.Groups = over.Groups
	}
	base.CPUsPerSlot = or(over.CPUsPerSlot, base.CPUsPerSlot)
	base.MemoryPerSlot = or(over.MemoryPerSlot, base.MemoryPerSlot)
	base.Reserve.CPUs = or(over.Reserve.CPUs, base.Reserve.CPUs)
	base.Reserve.Memory = or(over.Reserve.Memory, base.Reserve.Memory)
	base.Agent.Binary = or(over.Agent.Binary, base.Agent.Binary)
	base.Agent.Endpoint = or(over.Agent.Endpoint, base.Agent.Endpoint)
	base.Agent.DownloadURL = or(over.Agent.DownloadURL, base.Agent.DownloadURL)
	base.Agent.DownloadSHA256 = or(over.Agent.DownloadSHA256, base.Agent.DownloadSHA256)
	base.Agent.Tags = orList(over.Agent.Tags, base.Agent.Tags)
	base.Agent.AllowedRepositories = orList(over.Agent.AllowedRepositories, base.Agent.AllowedRepositories)
	base.Job.MaxMinutes = or(over.Job.MaxMinutes, base.Job.MaxMinutes)
	base.Job.TimeLimit = or(over.Job.TimeLimit, base.Job.TimeLimit)
	base.Job.TasksMax = or(over.Job.TasksMax, base.Job.TasksMax)
	base.Job.ShmSize = or(over.Job.ShmSize, base.Job.ShmSize)
	base.Job.Disk = or(over.Job.Disk, base.Job.Disk)
	base.Job.Profile = or(over.Job.Profile, base.Job.Profile)
	base.Job.Network = or(over.Job.Network, base.Job.Network)
	base.Job.AllowedNetworks = orList(over.Job.AllowedNetworks, base.Job.AllowedNetworks)
	base.Job.AllowedImages = orList(over.Job.AllowedImages, base.Job.AllowedImages)
	base.Job.PrivateRegistries = orList(over.Job.PrivateRegistries, base.Job.PrivateRegistries)
	base.Job.CPUQuota = or(over.Job.CPUQuota, base.Job.CPUQuota)
	base.Image.Name = or(over.Image.Name, base.Image.Name)
	base.Image.AutoUpdate = or(over.Image.AutoUpdate, base.Image.AutoUpdate)
	base.Image.Keep = or(over.Image.Keep, base.Image.Keep)
	base.Image.FirstJobs = or(over.Image.FirstJobs, base.Image.FirstJobs)
	base.Docker.Socket = or(over.Docker.Socket, base.Docker.Socket)
	base.Metrics.Listen = or(over.Metrics.Listen, base.Metrics.Listen)
	base.Hygiene.Disabled = or(over.Hygiene.Disabled, base.Hygiene.Disabled)
	base.Hygiene.Clocks = or(over.Hygiene.Clocks, base.Hygiene.Clocks)
	return base
}
