// Command registry serves the stand-in of package registrytest, for machines
// without a network: docker push fills it, and
// curl -d '{"cuts":1,"after":70000}' localhost:5000/faults breaks it.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/gpu-mode/kbnode/test/registrytest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// Set the two to let docker login be needed.
	g := &registrytest.Registry{User: os.Getenv("REGISTRY_USER"), Password: os.Getenv("REGISTRY_PASSWORD")}
	s := &http.Server{Addr: cmp.Or(os.Getenv("REGISTRY_ADDRESS"), "127.0.0.1:5000"), Handler: g, ReadHeaderTimeout: time.Minute}
	go func() {
		<-ctx.Done()
		_ = s.Close()
	}()
	if err := s.ListenAndServe(); !errors.Is(err, http.ErrServerClosed) {
		_, _ = fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
}
