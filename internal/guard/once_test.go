package guard

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/moby/moby/api/types/container"
	"github.com/moby/moby/api/types/mount"
)

// TestStartOnce starts a container again, in all ways that reach it: after the first start the
// job controls what the engine reads.
func TestStartOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.add(earlier, "kbnode-gpu0-earlier", "buildkite-gpu0.slice", "0") // it runs
	id := r.create(t, "job")
	if status, answer := r.ask(t, "POST", "/containers/job/start", ""); status != http.StatusNoContent {
		t.Fatal(answer)
	}
	for _, path := range []string{"/containers/job/start", "/v1.45/containers/" + id + "/start", "/containers/" + id[:63] + "/start", "/containers/kbnode-gpu0-job/start", "/containers/earlier/start"} {
		r.engine.requests = nil
		if status, answer := r.ask(t, "POST", path, ""); status != http.StatusForbidden || !strings.Contains(answer, "has already run") {
			t.Errorf("%s: %d %s", path, status, answer)
		}
		if r.engine.seen("POST") || r.engine.seen("DELETE") {
			t.Errorf("%s: the engine was asked %q", path, r.engine.requests)
		}
	}
	if status, _ := r.ask(t, "POST", "/containers/job/restart", ""); status != http.StatusForbidden {
		t.Errorf("restart: %d", status)
	}
}

// TestStartsTogether starts one container many times concurrently.
func TestStartsTogether(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	var mu sync.Mutex
	started := 0
	r.engine.onStart = func() { mu.Lock(); started++; mu.Unlock() }
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { r.ask(t, "POST", "/containers/job/start", "") })
		all.Go(func() { r.ask(t, "GET", "/containers/unknown/json", "") }) // the list is read again meanwhile
	}
	all.Wait()
	if started != 1 {
		t.Errorf("the engine was asked to start it %d times", started)
	}
}

// TestStartBeforeAnswer starts a container that was listed before its creation was answered, and
// again afterward.
func TestStartBeforeAnswer(t *testing.T) {
	t.Parallel()
	var o owners
	o.add("a", owned{})
	if _, first := o.take("a"); !first {
		t.Error("the first start is refused")
	}
	o.add("a", owned{name: "job"})
	if _, first := o.take("a"); first {
		t.Error("it starts twice")
	}
}

// TestContainersPerSlot concurrently creates more containers than a slot may have, including
// those of an earlier guard.
func TestContainersPerSlot(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.engine.add(earlier, "kbnode-gpu0-earlier", "buildkite-gpu0.slice", "0")
	r.engine.add(neighbour, "kbnode-gpu1-job", "buildkite-gpu1.slice", "1")
	var all sync.WaitGroup
	for range 2 * maxContainers {
		all.Go(func() { r.ask(t, "POST", "/containers/create", `{"Image":"img"}`) })
	}
	all.Wait()
	if n := len(r.engine.created); n != maxContainers-1 {
		t.Errorf("%d were created beside the earlier one, want %d", n, maxContainers-1)
	}
	if status, answer := r.ask(t, "POST", "/containers/create", `{"Image":"img"}`); status != http.StatusForbidden || !strings.Contains(answer, "docker rm") {
		t.Errorf("one more: %d %s", status, answer)
	}
	// A container that was run with --rm disappears by itself.
	r.engine.mu.Lock()
	delete(r.engine.containers, earlier)
	r.engine.mu.Unlock()
	r.create(t, "")
}

// TestUnknownNameIsCheap checks what a request for an unknown name costs the engine.
func TestUnknownNameIsCheap(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	for range 4 {
		r.create(t, "")
	}
	r.engine.requests = nil
	r.ask(t, "GET", "/containers/unknown/json", "")
	for _, asked := range r.engine.requests {
		if strings.HasSuffix(asked, "/json") {
			t.Errorf("the engine was asked %s", asked)
		}
	}
}

func TestSizeIsNotAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.create(t, "job")
	r.engine.requests = nil
	for _, path := range []string{"/containers/job/json?size=1", "/containers/json?all=1&size=true"} {
		if status, answer := r.ask(t, "GET", path, ""); status != http.StatusOK {
			t.Errorf("%s: %d %s", path, status, answer)
		}
	}
	for _, asked := range r.engine.requests {
		if strings.Contains(asked, "size") {
			t.Errorf("the engine was asked %s", asked)
		}
	}
	if status, answer := r.ask(t, "GET", `/containers/json?filters={"label":["`+strings.Repeat("x", maxString)+`"]}`, ""); status != http.StatusForbidden {
		t.Errorf("a long filter: %d %s", status, answer)
	}
}

// TestFew occupies all places and checks that the next request waits.
func TestFew(t *testing.T) {
	t.Parallel()
	places := make(chan struct{}, maxWhole)
	inside, leave := make(chan int, 2*maxWhole), make(chan struct{})
	handle := few(places, func(*call) error { inside <- 1; <-leave; return nil })
	var all sync.WaitGroup
	for range 2 * maxWhole {
		all.Go(func() { _ = handle(&call{r: (&http.Request{}).WithContext(t.Context())}) })
	}
	for range maxWhole {
		<-inside
	}
	if n := len(inside); n > 0 {
		t.Errorf("%d more are inside", n)
	}
	close(leave)
	all.Wait()
}

func TestSuits(t *testing.T) {
	t.Parallel()
	source := t.TempDir()
	if err := os.Symlink("/proc/self/fd/8", filepath.Join(source, "link")); err != nil {
		t.Fatal(err)
	}
	g := &guard{policy: testPolicy(), facts: testFacts()}
	for name, row := range map[string]struct {
		user, dir string
		image     imageConfig
		want      string
	}{
		"nothing":                     {"", "", imageConfig{}, ""},
		"an image's account":          {"", "", imageConfig{User: "33"}, `image "i": "33" is a system account`},
		"an image's, replaced":        {"0", "", imageConfig{User: "33"}, ""},
		"an image's directory":        {"", "", imageConfig{WorkingDir: "/proc/self/fd/7"}, "cannot start below /proc"},
		"an image's, by dots":         {"", "", imageConfig{WorkingDir: "x/../../sys"}, "cannot start below /sys"},
		"a link in the checkout":      {"", "/w/link", imageConfig{}, "goes through a symbolic link"},
		"below a link":                {"", "", imageConfig{WorkingDir: "/w/link/x"}, "goes through a symbolic link"},
		"a directory of the checkout": {"", "/w/none/x", imageConfig{}, ""},
	} {
		wanted := &container.CreateRequest{Config: &container.Config{Image: "i", User: row.user, WorkingDir: row.dir},
			HostConfig: &container.HostConfig{Mounts: []mount.Mount{bind(source, "/w", false)}}}
		err := g.suits(wanted, row.image)
		if got := fmt.Sprint(err); row.want == "" && err != nil || !strings.Contains(got, row.want) {
			t.Errorf("%s: %s, want %q", name, got, row.want)
		}
	}
}

func TestOthersIDs(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o700); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"passwd": "root:x:0:0::/:\nkbnode-gpu0:x:2000:2001::/:\nkbnode-gpu1:x:2002:2003::/:\nkbnode-git:x:2004:2005::/:\nalice:x:1000:1000::/:\nbroken:x\n",
		"subuid": "alice:100000:65536\nbroken:x:9999999\n", "subgid": "alice:300000:65536\n",
	} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	b := &builder{facts: facts{user: "2000:2001"}}
	for user, free := range map[string]bool{
		"": true, "root": true, "2000:2001": true, "1000": true, "2002": false, "0:2003": false, "2004": false, "0:2005": false, "2003": true, "100000": false, "165535": false,
		"165536": true, "300000": true, "0:300000": false, "1000:100000": true,
	} {
		if err := b.othersIDs(root, user, nil); (err == nil) != free {
			t.Errorf("user %q: %v", user, err)
		}
	}
	if err := b.othersIDs(root, "", []string{"video", "2003"}); err == nil {
		t.Error("another slot's group passes")
	}
}
