package split

import "testing"

// TestKindsOfCores gives a machine of 12 cores other capacities and microarchitectures. Cores
// of another kind than most stay with the system.
func TestKindsOfCores(t *testing.T) {
	t.Parallel()
	const a, b = "0x41 0xd85", "0x41 0xd87"
	for name, tt := range map[string]struct {
		capacity []int // of the cores; the last one also applies to the rest
		kind     []string
		slots    string // CPUs that slots may have
	}{
		"favored":                         {[]int{1024, 1017, 997, 1009, 980}, nil, "0-11"},
		"a tenth":                         {[]int{1000, 900}, nil, "0-11"},
		"more than a tenth":               {[]int{1000, 1000, 899}, nil, "2-11"},
		"steps of less than a tenth":      {[]int{1024, 940, 870, 800, 730}, nil, "0-11"},
		"favored and small":               {[]int{718, 705, 718, 705, 690, 1017, 997, 1024, 1017}, nil, "5-11"},
		"as many small":                   {[]int{705, 718, 705, 718, 705, 718, 1024, 1017, 997}, nil, "6-11"},
		"another make of equal capacity":  {[]int{1000}, []string{a, a, a, b}, "3-11"},
		"another make of nearly the same": {[]int{1000, 960, 1000, 980}, []string{b, b, b, a}, "3-11"},
		"one make with slow cores":        {[]int{700, 700, 1024, 1000}, []string{a}, "2-11"},
		"makes, favored":                  {[]int{718, 700, 718, 700, 718, 1017, 997, 1024}, []string{b, b, b, b, b, a}, "5-11"},
		"unknown capacity":                {[]int{0}, nil, "0-11"},
		"some unknown":                    {[]int{0, 0, 1024, 1000}, nil, "2-11"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := machine{packages: 1, nodesPerPackage: 1, coresPerNode: 12, smt: 1, gpuNodes: []int{0}}.input()
			in.ReserveCPUs = -1
			for i := range in.CPU.List {
				in.CPU.List[i].Capacity = tt.capacity[min(i, len(tt.capacity)-1)]
				if tt.kind != nil {
					in.CPU.List[i].Kind = tt.kind[min(i, len(tt.kind)-1)]
				}
			}
			got, err := Machine(in)
			if err != nil || got.Blocks[0].CPUs.String() != tt.slots {
				t.Errorf("%v: want CPUs %s\n%s", err, tt.slots, render(got))
			}
		})
	}
}
