package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gpu-mode/kbnode/internal/plan"
)

// A setting that someone changed is set again at the next look. A look that finds nothing
// writes nothing, and switching hygiene off restores everything.
func TestHygiene(t *testing.T) {
	t.Parallel()
	n := newFakeNode(t)
	const setting = "/sys/kernel/mm/ksm/run"
	file := filepath.Join(n.root, setting)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	expect := func(want string) {
		t.Helper()
		if text, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(text)) != want {
			t.Errorf("%s is %q (%v), want %q", setting, text, err, want)
		}
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	write("1")
	n.tune = []plan.Tunable{{Name: setting, Value: "0", Form: plan.Word}}
	synctest.Test(t, func(t *testing.T) {
		log, _ := running(t, n, Options{})
		expect("0")
		record := filepath.Join(n.root, plan.TunablesPath)
		before, err := os.Stat(record)
		if err != nil {
			t.Fatal(err)
		}
		reads, _, _ := n.count()
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		after, err := os.Stat(record)
		if err != nil || !os.SameFile(before, after) || !before.ModTime().Equal(after.ModTime()) {
			t.Errorf("the record was written again (%v)", err)
		}
		if now, _, _ := n.count(); now != reads {
			t.Errorf("the machine was read %d times more", now-reads)
		}

		write("2")
		time.Sleep(31 * time.Second)
		synctest.Wait()
		expect("0")

		n.set(func() { n.tune, n.stamp = nil, "disabled" })
		time.Sleep(31 * time.Second)
		synctest.Wait()
		expect("1")
		var tuned []string
		for _, e := range kinds(t, log) {
			if strings.Contains(e, "tune ") {
				tuned = append(tuned, e)
			}
		}
		want := []string{
			"changed: tune settings of the machine (" + setting + ": 1 -> 0)",
			"changed: tune settings of the machine (" + setting + ": 2 -> 0)",
			"changed: untune settings of the machine (" + setting + ": 0 -> 1)",
		}
		if diff := cmp.Diff(want, tuned); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}
