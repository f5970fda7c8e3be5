package runner

import (
	"os"
	"strconv"
	"strings"
)

// memoryEvents has how many processes of this container the kernel has ended because memory ran out
// (Documentation/admin-guide/cgroup-v2.rst). Tests replace it.
var memoryEvents = "/sys/fs/cgroup/memory.events"

// endedForMemory returns that number, 0 if it cannot be read.
func endedForMemory() int {
	text, _ := os.ReadFile(memoryEvents)
	for line := range strings.Lines(string(text)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(count)) // as the kernel wrote it
			return n
		}
	}
	return 0
}
