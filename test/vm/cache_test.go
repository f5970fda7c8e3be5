package vm

import (
	"errors"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestCached(t *testing.T) {
	t.Parallel()
	cache, made := t.TempDir(), 0
	fill := func(err error) func(string) error {
		return func(dir string) error {
			made++
			must.Write(t, dir, "file", "")
			return err
		}
	}
	if _, err := cached(cache, "trees", []byte("a"), fill(errors.New("cut off"))); err == nil {
		t.Error("what is half made is taken")
	}
	for range 2 {
		dir, err := cached(cache, "trees", []byte("a"), fill(nil))
		must.Do(t, err)
		must.Read(t, dir+"/file")
	}
	_, err := cached(cache, "trees", []byte("b"), fill(nil))
	must.Do(t, err)
	must.Equal(t, 3, made)
}
