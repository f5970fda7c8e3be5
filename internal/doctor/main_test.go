package doctor

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// scenes holds the worst status that the tests got from each check, and advice that fails for
// those who type it as themselves.
var scenes struct {
	sync.Mutex
	worst    map[string]Status
	rootless []string
}

// forRoot matches commands that only root can run.
var forRoot = regexp.MustCompile(`(sudo )?\b(kbnode (install|reconcile|upgrade|drain|resume|uninstall|selftest|doctor|image|status)\b|systemctl (start|stop|restart|enable|disable|edit|reload|unmask|revert)|journalctl|dmesg|docker (ps|rm|system|image|builder|version)|usermod|update-grub|mount -o|modprobe )`)

// rootless returns the first command of an advice that only root can run, and that lacks sudo.
func rootless(advice string) string {
	for _, command := range forRoot.FindAllString(advice, -1) {
		if !strings.HasPrefix(command, "sudo ") {
			return command
		}
	}
	return ""
}

func played(results ...Result) {
	scenes.Lock()
	defer scenes.Unlock()
	if scenes.worst == nil {
		scenes.worst = map[string]Status{}
	}
	for _, r := range results {
		scenes.worst[r.ID] = max(scenes.worst[r.ID], r.Status)
		for _, f := range r.Findings {
			if rootless(f.Advice) != "" {
				scenes.rootless = append(scenes.rootless, r.ID+": "+f.Advice)
			}
		}
	}
}

// TestMain fails if advice lacks sudo, or if no test sees a check find a problem. Only a run of all tests can tell.
func TestMain(m *testing.M) {
	code := m.Run()
	whole := true
	for _, name := range []string{"test.run", "test.skip", "test.list", "test.bench", "test.fuzz"} {
		whole = whole && flag.Lookup(name).Value.String() == ""
	}
	for _, advice := range scenes.rootless {
		fmt.Println("sudo is missing in the advice of", advice)
		code = max(code, 1)
	}
	for _, c := range All() {
		if whole && scenes.worst[c.ID] < Warn && !strings.HasPrefix(c.About, "for information: ") {
			fmt.Printf("no test has a scene in which %s finds a problem\n", c.ID)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}
