package bktest_test

import (
	"testing"

	"github.com/gpu-mode/kbnode/internal/bktest"
)

// listen starts a server with its store on another port.
func listen(t *testing.T, o bktest.Options) *bktest.Server {
	t.Helper()
	s := bktest.New(o)
	if err := s.Listen("127.0.0.1:0", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}
