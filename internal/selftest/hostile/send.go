package hostile

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"
)

const (
	patience   = 30 * time.Second // for an answer that should come at once, on a busy machine
	quiet      = time.Second      // without data, after which an answered connection is done
	dripPeriod = 500 * time.Millisecond
	maxKept    = 64 << 10 // bytes of a body
	maxAnswers = 16
)

// Send writes the request to a socket and reads the answers. An error means that it could
// not be sent.
func (r Request) Send(ctx context.Context, socket string, t Target) (Answer, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return Answer{}, fmt.Errorf("connect to the slot's Docker socket: %w", err)
	}
	defer func() { _ = conn.Close() }()
	// The end of ctx ends the connection.
	defer context.AfterFunc(ctx, func() { _ = conn.Close() })()
	wait := r.Patience
	if wait == 0 {
		wait = patience
	}
	if err := conn.SetDeadline(time.Now().Add(wait)); err != nil {
		return Answer{}, fmt.Errorf("connect to the slot's Docker socket: %w", err)
	}
	go r.write(conn, t)
	a := r.read(conn)
	return a, ctx.Err()
}

// write runs while the answers are read: the guard may answer before it has read
// everything, and then no one reads the rest.
func (r Request) write(conn net.Conn, t Target) {
	_, err := io.WriteString(conn, r.bytes(t))
	for err == nil && r.Drip != "" {
		time.Sleep(dripPeriod)
		_, err = io.WriteString(conn, r.Drip)
	}
}

func (r Request) read(conn net.Conn) Answer {
	var a Answer
	head := r.Method == http.MethodHead
	br := bufio.NewReader(conn)
	for len(a.Responses) < maxAnswers {
		resp, err := http.ReadResponse(br, &http.Request{Method: r.Method})
		if err != nil {
			// Silence after an answer is an end like any other.
			a.Ended = len(a.Responses) > 0 || !errors.Is(err, os.ErrDeadlineExceeded)
			return a
		}
		if resp.StatusCode == http.StatusContinue {
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(quiet)) // a stream has no end, and its beginning is enough
		body, _ := io.ReadAll(io.LimitReader(resp.Body, maxKept))
		a.Responses = append(a.Responses, Response{Status: resp.StatusCode, Body: body, head: head})
	}
	a.Ended = true
	return a
}
