package lazy

import (
	"os"
	"strconv"
	"strings"
	"testing"
)

// mapped returns how much of files this process has mapped, in KiB.
func mapped(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "RssFile:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTrim(t *testing.T) { // not parallel: other tests would touch the pages again
	mapped(t) // what reading needs is mapped now
	before := mapped(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	// Only a little is less here: the kernel maps again what surrounds each page that is touched.
	if after := mapped(t); after >= before {
		t.Errorf("%d KiB of files are mapped, %d before", after, before)
	}
}
