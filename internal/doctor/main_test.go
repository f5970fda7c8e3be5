package doctor

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
)

// scenes holds the worst status that the tests got from each check.
var scenes struct {
	sync.Mutex
	worst map[string]Status
}

func played(results ...Result) {
	scenes.Lock()
	defer scenes.Unlock()
	if scenes.worst == nil {
		scenes.worst = map[string]Status{}
	}
	for _, r := range results {
		scenes.worst[r.ID] = max(scenes.worst[r.ID], r.Status)
	}
}

// TestMain fails if no test sees a check find a problem. Only a run of all tests can tell.
func TestMain(m *testing.M) {
	code := m.Run()
	whole := true
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.bench", "test.fuzz"} {
		whole = whole && flag.Lookup(name).Value.String() == ""
	}
	for _, c := range All() {
		if whole && scenes.worst[c.ID] < Warn && !strings.HasPrefix(c.About, "for information: ") {
			fmt.Printf("no test has a scene in which %s finds a problem\n", c.ID)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
