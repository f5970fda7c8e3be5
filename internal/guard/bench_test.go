package guard

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"testing"
	"time"
)

// BenchmarkLatency compares a request through the guard with the same to the engine itself, in
// turn. It reports the medians, and what the guard adds.
func BenchmarkLatency(b *testing.B) {
	r := newRig(b)
	r.create(b, "job")
	id := ""
	for id = range r.engine.containers {
	}
	direct := &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return net.Dial("unix", r.engine.socket) }}}
	ask := func(c *http.Client) time.Duration {
		start := time.Now()
		resp, err := c.Get("http://docker/v1.45/containers/" + id + "/json")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
			b.Fatalf("%s, %v", resp.Status, err)
		}
		hangUp(resp.Body)
		return time.Since(start)
	}
	var engine, guarded []time.Duration
	for b.Loop() {
		engine = append(engine, ask(direct))
		guarded = append(guarded, ask(r.client))
	}
	median := func(d []time.Duration) float64 {
		slices.Sort(d)
		return float64(d[len(d)/2].Microseconds()) / 1000
	}
	b.ReportMetric(median(engine), "engine-ms")
	b.ReportMetric(median(guarded), "guard-ms")
	b.ReportMetric(median(guarded)-median(engine), "added-ms")
}

// BenchmarkAttach compares the output of a container through the guard with the same from the
// engine itself, in turn.
func BenchmarkAttach(b *testing.B) {
	const size = 64 << 20
	r := newRig(b)
	r.create(b, "job")
	id := ""
	for id = range r.engine.containers {
	}
	transfer := func(socket, ref string) float64 {
		conn, out := attachAt(b, socket, ref, "")
		engine := <-r.engine.attached
		start := time.Now()
		// As in Docker: from the container's pipe, in frames.
		from, to, err := os.Pipe()
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			piece := make([]byte, 32<<10)
			for sent := 0; sent < size; sent += len(piece) {
				if _, err := to.Write(piece); err != nil {
					return
				}
			}
			_ = to.Close()
		}()
		go func() {
			buf := make([]byte, 8+32<<10)
			for {
				n, err := from.Read(buf[8:])
				if err != nil {
					break
				}
				if _, err := engine.Write(buf[:8+n]); err != nil {
					break
				}
			}
			_ = from.Close()
			_ = engine.Close()
		}()
		n, err := io.Copy(io.Discard, out)
		if err != nil || n < size {
			b.Fatalf("%d bytes, %v", n, err)
		}
		took := time.Since(start)
		hangUp(conn)
		return size / took.Seconds() / 1e6
	}
	var engine, guarded []float64
	for b.Loop() {
		engine = append(engine, transfer(r.engine.socket, id))
		guarded = append(guarded, transfer(r.socket, "job"))
	}
	e, g := slices.Max(engine), slices.Max(guarded)
	b.ReportMetric(e, "engine-MB/s")
	b.ReportMetric(g, "guard-MB/s")
	b.ReportMetric(g/e, "ratio")
}
