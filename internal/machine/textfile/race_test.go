package textfile

import (
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestRace has someone exchange the directory for a link, and put links in place of the new file, all the time.
func TestRace(t *testing.T) {
	t.Parallel()
	p := newPlace(t)
	other, link := p.root+"/etc/cron.d", p.root+"/srv/link"
	must.Write(t, p.root, "etc/cron.d/"+Name, "root's")
	must.Do(t, os.Symlink(other, link))
	var over atomic.Bool
	var attackers sync.WaitGroup
	attackers.Go(func() {
		for !over.Load() {
			_ = unix.Renameat2(unix.AT_FDCWD, p.dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
		}
	})
	attackers.Go(func() {
		for !over.Load() {
			for _, dir := range []string{p.dir, link} {
				if info, err := os.Lstat(dir); err == nil && info.IsDir() {
					_ = os.Symlink(p.secret, dir+"/"+tempName)
					_ = os.Link(p.secret, dir+"/"+tempName)
				}
			}
		}
	})
	written := 0
	for range 5000 {
		if Write(p.root, metricsDir, []byte(text)) == nil {
			written++
		}
		_ = Remove(p.root, metricsDir) // or not: it is the wrong directory
	}
	over.Store(true)
	attackers.Wait()
	must.Equal(t, "secret", must.Read(t, p.secret))
	must.Equal(t, "root's", must.Read(t, other+"/"+Name))
	if written == 0 {
		t.Error("nothing was written")
	}
}
