package config

import (
	"errors"
	"fmt"
	"reflect"
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
		if err != nil || n < 1 || s != strconv.Itoa(n) {
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
	if !over.GPUs.IsZero() || over.GPUCount != 0 { // either overrides both
		base.GPUs, base.GPUCount = over.GPUs, over.GPUCount
		if base.GPUs.None { // drop what applies to the other kind of machine
			base.GPUsPerSlot, base.Groups = 0, nil
		} else {
			base.Slots = 0
		}
	}
	set := map[string]reflect.Value{}
	eachKey(reflect.ValueOf(over), "", func(key string, v reflect.Value) {
		if !v.IsZero() {
			set[key] = v
		}
	})
	eachKey(reflect.ValueOf(&base).Elem(), "", func(key string, v reflect.Value) {
		if to, ok := set[key]; ok {
			v.Set(to)
		}
	})
	return base
}
