package doctor

import (
	"context"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
)

// Vulnerabilities of runc by which a container becomes root of the node.
const (
	runcLeak  = "CVE-2024-21626" // fixed in 1.1.12
	runcRaces = "CVE-2025-31133" // and 52565 and 52881; fixed in 1.2.8, 1.3.3 and 1.4.0-rc.3
)

var runcForm = lazy.Regexp(`^v?(\d{1,4})\.(\d{1,4})\.(\d{1,4})(?:-rc\.?(\d{1,4}))?`)

// runcHoles returns the vulnerabilities of a version of runc, the oldest first.
func runcHoles(version string) []string {
	m := runcForm().FindStringSubmatch(version)
	if m == nil {
		return nil
	}
	const candidates = -1 << 16 // they are before their release
	last := 0
	if m[4] != "" {
		candidate, _ := strconv.Atoi(m[4])
		last = candidates + candidate
	}
	v := append(numbers(strings.Join(m[1:4], ".")), last)
	before := func(fixed ...int) bool { return slices.Compare(v, fixed) < 0 }
	switch {
	case before(1, 1, 12, 0):
		return []string{runcLeak, runcRaces}
	case before(1, 2, 8, 0), !before(1, 3) && before(1, 3, 3, 0), !before(1, 4) && before(1, 4, 0, candidates+3):
		return []string{runcRaces}
	}
	return nil
}

func dockerRunc(_ context.Context, m *Machine) Answer {
	version, holes := m.Docker.Runc, runcHoles(m.Docker.Runc)
	switch {
	case version == "":
		return none("the engine does not report the version of runc")
	case len(holes) == 0:
		return found(ok("%s", version))
	}
	f := warn("%s: judging by its version, a job can become root on the node (%s)", version, strings.Join(holes, ", "))
	const fixed = "a distribution may have fixed it without changing the version: "
	list, _ := m.Packages("containerd.io", "runc", "runc-stable")
	if len(list) == 0 {
		return found(f.Advise("update runc to 1.2.8, 1.3.3 or newer; "+fixed+"rpm -q --changelog runc containerd.io | grep %s", runcRaces))
	}
	return found(f.By("apt-get update && apt-get install -y --only-upgrade %s", list[0].Name).
		Advise(fixed+"apt-get changelog %s | grep %s", list[0].Name, runcRaces))
}
