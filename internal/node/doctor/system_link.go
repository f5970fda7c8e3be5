package doctor

import (
	"context"
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// minLink is the slowest link that a node may have, in Mbit/s: images, repositories and results go over it.
const minLink = 100

// systemLink looks at the links of the default routes, not at what is behind them.
func systemLink(_ context.Context, m *Machine) Answer {
	devices := m.outward()
	if len(devices) == 0 {
		return none("no default route is known")
	}
	var wrong []Finding
	var known []string
	for _, device := range devices {
		speed, card := m.linkSpeed(device, 0)
		switch {
		case speed == 0:
		case speed < minLink:
			wrong = append(wrong, warn("%s, over which the node reaches the Internet, runs at %d Mbit/s; a node needs %d", card, speed, minLink).
				Advise("check the cable and the switch's port; sudo ethtool %s shows what both ends can do", card))
		default:
			known = append(known, fmt.Sprintf("%s: %d Mbit/s", card, speed))
		}
	}
	if len(wrong)+len(known) == 0 {
		return none("%s does not report its speed, as in a virtual machine", strings.Join(devices, ", "))
	}
	return foundOr(wrong, ok("%s", strings.Join(known, ", ")))
}

// outward returns the devices of the default routes that are used: for each protocol, those of the lowest metric.
func (m *Machine) outward() (devices []string) {
	for _, table := range []struct {
		name, to              string
		device, metric, needs int // columns
		base                  int
	}{
		{"/proc/net/route", "", 0, 6, 8, 10},
		{"/proc/net/ipv6_route", strings.Repeat("0", 32) + " 00", 9, 5, 10, 16},
	} {
		least, best := uint64(math.MaxUint64), []string{}
		m.Lines(table.name, func(line string) {
			f := strings.Fields(line)
			if len(f) < table.needs || f[table.device] == "lo" || !strings.HasPrefix(line, table.to) || table.to == "" && (f[1] != "00000000" || f[7] != "00000000") {
				return
			}
			metric, err := strconv.ParseUint(f[table.metric], table.base, 32)
			switch {
			case err != nil || metric > least:
			case metric < least:
				least, best = metric, []string{f[table.device]}
			default:
				best = append(best, f[table.device])
			}
		})
		devices = append(devices, best...)
	}
	slices.Sort(devices)
	return slices.Compact(devices)
}

// maxLower is how many devices may be below one another, as a VLAN's bridge's bond's cards are.
const maxLower = 8

// linkSpeed returns the speed of a device in Mbit/s, and the name of the device that has it: a card or a
// bond, or the fastest below another device, which has none of its own. The speed is 0 if unknown: the
// kernel has -1 or an error for a card without one.
func (m *Machine) linkSpeed(device string, depth int) (speed int, card string) {
	dir := "/sys/class/net/" + path.Base(device)
	if m.Exists(dir+"/device") || m.Exists(dir+"/bonding") {
		n, err := strconv.Atoi(m.Value(dir + "/speed"))
		if err == nil && n > 0 {
			return n, device
		}
	}
	if depth < maxLower {
		for _, lower := range m.List(dir + "/lower_*") {
			if n, name := m.linkSpeed(strings.TrimPrefix(path.Base(lower), "lower_"), depth+1); n > speed {
				speed, card = n, name
			}
		}
	}
	return speed, card
}
