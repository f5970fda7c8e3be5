package firewall

import (
	"slices"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestInternet sends packets of a slot with only the Internet, beside one with more.
func TestInternet(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := example
	n.Slots = slices.Clone(twoSlots)
	n.Slots[0].Internet = true
	r.node.in(func() {
		must.Do(t, n.Ensure())
	})
	// What slots reach beyond the node's link, on ports 53, 80 and proxy.
	none, all := map[int]bool{53: no, 80: no}, map[int]bool{53: yes, 80: yes, proxy: yes}
	ways := map[string]map[int]bool{
		"192.0.2.2": all, "203.0.113.1": all, // documentation addresses, in place of the Internet
		"10.1.2.3": all, "10.200.0.1": none,
		"100.64.7.7": none, "172.31.255.1": none, "198.19.255.9": none, "192.168.77.8": none,
		"192.168.77.7":    {80: yes, 53: no, proxy: no},
		"172.16.0.53":     {53: yes, 80: no},
		"169.254.169.254": none,
	}
	var rows []way
	for to, ports := range ways {
		rows = append(rows,
			way{"a job to " + to, r.job, to, ports, refusedAtOnce},
			way{"the node to " + to, r.node, to, map[int]bool{53: yes, 80: yes}, false},
			way{"the other slot's job to " + to, r.neighbour, to, map[int]bool{53: yes, 80: to != "169.254.169.254"}, false})
	}
	rows = append(rows, []way{
		{"a job to its slot's other container", r.job, "198.18.0.3", all, false},
		{"a job to its neighbour", r.job, "198.18.1.2", none, refusedAtOnce},
		{"a job to another container", r.job, "172.30.0.2", none, refusedAtOnce},
		{"a job to what the node publishes", r.job, "192.0.2.1", map[int]bool{8080: no}, false},
		{"a job to the node", r.job, "192.0.2.1", map[int]bool{53: yes, 80: no}, refusedAtOnce},
		{"the outside to a job", r.external, "198.18.0.2", none, false},
	}...)
	try(t, rows)
}
