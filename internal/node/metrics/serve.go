package metrics

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

const (
	// maxConns bounds the open connections.
	maxConns  = 16
	maxHeader = 4 << 10 // bytes, plus 4 KiB that Go adds
	readTime  = 5 * time.Second
	writeTime = 10 * time.Second
)

type web struct {
	address string // the wanted one
	logged  string // why it is not available, as logged
	server  *http.Server
	ended   chan struct{} // closed when server has stopped serving
}

// serve moves the server to an address; "" is none. A failure is retried at each pass.
func (e *Exporter) serve(address string) {
	if e.server != nil && address == e.address {
		select {
		case <-e.ended: // by itself, as when accept has no memory
		default:
			return
		}
	}
	e.end()
	if address != e.address {
		e.address, e.logged = address, ""
	}
	if address == "" {
		return
	}
	err := e.listen(address)
	switch {
	case err == nil:
		e.logged = ""
		e.Log.Info("metrics served", "address", address)
	case err.Error() != e.logged:
		e.logged = err.Error()
		e.Log.Warn("metrics not served", "err", err)
	}
}

func (e *Exporter) listen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w; free the port, or set another metrics.listen", err)
	}
	var open atomic.Int64
	e.server = &http.Server{
		Handler:           e.handler(),
		ReadTimeout:       readTime,
		ReadHeaderTimeout: readTime,
		WriteTimeout:      writeTime,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(e.Log.Handler(), slog.LevelDebug),
		ConnState: func(c net.Conn, s http.ConnState) {
			switch s {
			case http.StateNew:
				if open.Add(1) > maxConns {
					_ = c.Close()
				}
			case http.StateClosed, http.StateHijacked:
				open.Add(-1)
			}
		},
	}
	e.server.SetKeepAlivesEnabled(false) // not needed for one scrape a minute
	ended := make(chan struct{})
	e.ended = ended
	go func(s *http.Server) {
		defer close(ended)
		if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			e.Log.Warn("metrics no longer served", "err", err)
		}
	}(e.server)
	return nil
}

// Close stops the server and removes the file: who reads it could not tell old values from new ones.
func (e *Exporter) Close() {
	e.end()
	e.keepFile("")
}

// end stops the server.
func (e *Exporter) end() {
	if e.server == nil {
		return
	}
	_ = e.server.Close()
	<-e.ended
	e.server = nil
}

func (e *Exporter) handler() http.Handler {
	mux := http.NewServeMux()
	// An error of one metric must not hide the others.
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.GathererFunc(e.gather),
		promhttp.HandlerOpts{DisableCompression: true, ErrorHandling: promhttp.ContinueOnError}))
	return mux
}

// gather reads all metrics as of the end of a pass.
func (e *Exporter) gather() ([]*dto.MetricFamily, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.registry.Gather()
}
