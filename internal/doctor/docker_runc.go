package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// Vulnerabilities of runc by which a container becomes root of the node.
const (
	runcLeak  = "CVE-2024-21626" // fixed in 1.1.12
	runcRaces = "CVE-2025-31133" // and 52565 and 52881; fixed in 1.2.8, 1.3.3 and 1.4.0-rc.3
)

var runcForm = lazy.Regexp(`^v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:-rc\.?(\d{1,4}))?`)

// runcHoles returns the vulnerabilities of a version from runc itself, the oldest first.
func runcHoles(version string) []string {
	m := runcForm().FindStringSubmatch(version)
	if m == nil {
		return nil
	}
	const released = 1 << 16 // after all release candidates
	v := make([]int, 4)
	for i, text := range m[1:] {
		_, _ = fmt.Sscan(text, &v[i])
	}
	if m[4] == "" {
		v[3] = released
	}
	before := func(minor, patch, candidate int) bool { // of major version 1
		return slices.Compare(v, []int{1, minor, patch, candidate}) < 0
	}
	of := func(major, minor int) bool { return v[0] == major && v[1] == minor }
	switch {
	case before(1, 12, released):
		return []string{runcLeak, runcRaces}
	case before(2, 8, released), of(1, 3) && before(3, 3, released), of(1, 4) && before(4, 0, 3):
		return []string{runcRaces}
	}
	return nil
}

func dockerRunc(_ context.Context, m *Machine) Answer {
	version := m.Docker.Runc
	holes := runcHoles(version)
	log := m.Changelog("runc")
	left := slices.DeleteFunc(slices.Clone(holes), func(hole string) bool { return strings.Contains(log, hole) })
	switch {
	case version == "":
		return none("the engine does not report the version of runc")
	case len(holes) == 0:
		return found(ok("%s", version))
	case len(left) == 0:
		return found(ok("%s; according to its changelog, the distribution has fixed %s", version, strings.Join(holes, " and ")))
	}
	hole := left[len(left)-1]
	f := warn("%s: judging by its version, a job can become root on the node (%s)", version, strings.Join(left, ", "))
	list, _ := m.Packages("containerd.io", "runc", "runc-stable")
	if len(list) == 0 {
		return found(f.Advise("update runc to 1.2.8, 1.3.3 or newer. A distribution may have fixed it without changing the version: rpm -q --changelog runc containerd.io | grep %s", hole))
	}
	return found(f.By("apt-get update && apt-get install -y --only-upgrade %s", list[0].Name).
		Advise("if that changes nothing, check whether the distribution has fixed it: apt-get changelog %s | grep %s", list[0].Name, hole))
}
