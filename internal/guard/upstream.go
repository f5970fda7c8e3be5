package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxAnswer bounds the answers that are read whole, in bytes.
	maxAnswer = 8 << 20
	// answerDeadline is how long a client has to read such an answer.
	answerDeadline = 30 * time.Second
)

// upstream is the engine's socket. Every request to it is built from scratch; nothing of the
// client's is forwarded that is not named.
type upstream struct {
	socket    string
	transport *http.Transport
}

func newUpstream(socket string) *upstream {
	u := &upstream{socket: socket}
	u.transport = &http.Transport{
		DialContext:         func(ctx context.Context, _, _ string) (net.Conn, error) { return u.dial(ctx) },
		DisableCompression:  true,
		MaxIdleConnsPerHost: 4,
		IdleConnTimeout:     30 * time.Second,
	}
	return u
}

func (u *upstream) dial(ctx context.Context) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	return d.DialContext(ctx, "unix", u.socket)
}

// request returns the request to the engine for c. The path is the route's with checked values
// in it, never the client's text.
func (u *upstream) request(c *call, body io.Reader) (*http.Request, error) {
	path := "/" + c.path
	if c.version != "" {
		path = "/" + c.version + path
	}
	target := url.URL{Scheme: "http", Host: "docker", Path: path, RawQuery: c.query.Encode()}
	req, err := http.NewRequestWithContext(c.r.Context(), c.method, target.String(), body)
	if err != nil {
		return nil, fmt.Errorf("ask Docker: %w", err)
	}
	req.Header.Set("User-Agent", "kbnode-guard")
	if c.auth != "" {
		req.Header.Set("X-Registry-Auth", c.auth)
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// ask sends the request of c to the engine. The caller closes the answer's body.
func (u *upstream) ask(c *call, body io.Reader) (*http.Response, error) {
	req, err := u.request(c, body)
	if err != nil {
		return nil, err
	}
	resp, err := u.transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("the Docker engine does not answer: %w", err)
	}
	return resp, nil
}

// get asks the engine for a document and decodes it into v. It passes on the engine's refusals.
func (u *upstream) get(c *call, v any) error {
	resp, err := u.ask(c, nil)
	if err != nil {
		return err
	}
	defer hangUp(resp.Body)
	body, err := readAll(resp)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return refusal{resp.StatusCode, strings.TrimSpace(string(body))}
	}
	if err := json.Unmarshal(body, v); err != nil {
		return fmt.Errorf("read Docker's answer: %w", err)
	}
	return nil
}

// hangUp closes what was read to its end or is given up, so that an error no longer matters.
func hangUp(c io.Closer) { _ = c.Close() }

// hopByHop lists headers of one connection, not of the answer.
var hopByHop = []string{"Connection", "Keep-Alive", "Transfer-Encoding", "Upgrade", "Trailer", "Te", "Proxy-Connection"}

// relay passes the engine's answer to the client as it comes: first the headers, which `docker
// run` waits for before it starts the container, then each piece of the body.
func relay(w http.ResponseWriter, resp *http.Response) {
	out, err := relayHead(w, resp)
	if err == nil {
		_, err = io.Copy(out, resp.Body)
	}
	if err != nil {
		// Half an answer must not look like a whole one.
		panic(http.ErrAbortHandler)
	}
}

func relayHead(w http.ResponseWriter, resp *http.Response) (io.Writer, error) {
	maps.Copy(w.Header(), resp.Header)
	for _, name := range hopByHop {
		w.Header().Del(name)
	}
	w.WriteHeader(resp.StatusCode)
	out := flusher{w, http.NewResponseController(w)}
	return out, out.rc.Flush()
}

type flusher struct {
	w  io.Writer
	rc *http.ResponseController
}

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.w.Write(p)
	if err == nil {
		err = f.rc.Flush()
	}
	return n, err
}

// answer writes a JSON answer of the guard.
func answer(w http.ResponseWriter, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	defer answerWithin(w)()
	_, _ = w.Write(data) // the client reads it or is gone
	return nil
}

// answerWithin gives a client answerDeadline to read its answer. end lifts the deadline, which
// would also apply to the connection's next answer.
func answerWithin(w http.ResponseWriter) (end func()) {
	rc := http.NewResponseController(w)
	_ = rc.SetWriteDeadline(time.Now().Add(answerDeadline)) // not every writer supports it
	return func() { _ = rc.SetWriteDeadline(time.Time{}) }
}

// readAll reads a whole answer of the engine.
func readAll(resp *http.Response) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	if err != nil {
		return nil, fmt.Errorf("read Docker's answer: %w", err)
	}
	if len(data) > maxAnswer {
		return nil, fmt.Errorf("read Docker's answer: it is larger than %d bytes", maxAnswer)
	}
	return data, nil
}

const (
	// upgradeDeadline is how long the engine has to accept an attached stream.
	upgradeDeadline = time.Minute
	// linger is how long the client has to see the end of the stream and hang up.
	linger = 2 * time.Second
	// hangupPoll is how often a stream that only gives output is checked for its end; the kernel
	// reports at once that the client is gone.
	hangupPoll = time.Second
)

// attach connects the client to a container's standard streams. Once the engine has switched
// protocols, data is copied in both directions; a slow reader on one side holds up the writer on
// the other.
func (g *guard) attach(c *call) error {
	if !strings.EqualFold(c.r.Header.Get("Upgrade"), "tcp") {
		return refusal{http.StatusBadRequest, "kbnode: attach needs the headers Connection: Upgrade and Upgrade: tcp"}
	}
	req, err := g.up.request(c, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "tcp")
	conn, err := g.up.dial(c.r.Context())
	if err != nil {
		return fmt.Errorf("the Docker engine does not answer: %w", err)
	}
	defer hangUp(conn)
	if err := conn.SetDeadline(time.Now().Add(upgradeDeadline)); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	if err := req.Write(conn); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	upReader := bufio.NewReader(conn)
	resp, err := http.ReadResponse(upReader, req)
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer hangUp(resp.Body)
	if resp.StatusCode != http.StatusSwitchingProtocols {
		relay(c.w, resp)
		return nil
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	client, clientBuf, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		return fmt.Errorf("attach: %w", err)
	}
	defer hangUp(client)
	if err := switchProtocols(client, resp); err != nil {
		return nil //nolint:nilerr // the client is gone, and its connection is ours now
	}
	join(client, clientBuf.Reader, conn, upReader)
	return nil
}

func switchProtocols(client net.Conn, resp *http.Response) error {
	if err := client.SetDeadline(time.Time{}); err != nil {
		return err
	}
	var head strings.Builder
	head.WriteString("HTTP/1.1 101 UPGRADED\r\n")
	if err := resp.Header.Write(&head); err != nil {
		return err
	}
	head.WriteString("\r\n")
	_, err := io.WriteString(client, head.String())
	return err
}

// join copies both ways until the engine has no more to send, or the client is gone. If the
// client closes its writing half, only the container's standard input ends.
func join(client net.Conn, clientReader *bufio.Reader, engine net.Conn, engineReader *bufio.Reader) {
	input, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(input)
		if err := pump(engine, client, clientReader); err != nil {
			// Discard what no one reads any more: closing a socket with unread data would reset
			// it and lose the last output.
			_, _ = io.Copy(io.Discard, client)
		}
		// The engine keeps the stream of a container that never starts open.
		if awaitHangup(client, ended) {
			_ = engine.Close()
		}
	}()
	// The stream ends here for both sides, even if the copy failed.
	_ = pump(client, engine, engineReader)
	close(ended)
	_ = client.SetReadDeadline(time.Now().Add(linger))
	_ = engine.Close()
	<-input
}

// awaitHangup waits until the other end of a connection has closed both halves, and reports
// whether that came before ended.
func awaitHangup(conn net.Conn, ended <-chan struct{}) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := c.SyscallConn()
	for err == nil {
		var hup bool
		err = raw.Control(func(fd uintptr) {
			fds := []unix.PollFd{{Fd: int32(fd)}}
			_, _ = unix.Poll(fds, int(hangupPoll.Milliseconds()))
			hup = fds[0].Revents&(unix.POLLHUP|unix.POLLERR) != 0
		})
		select {
		case <-ended:
			return false
		default:
		}
		if hup {
			return true
		}
	}
	return false
}

// pump copies what was buffered, then the rest of the connection, and then closes dst for
// writing.
func pump(dst, src net.Conn, ahead *bufio.Reader) error {
	if _, err := io.CopyN(dst, ahead, int64(ahead.Buffered())); err != nil {
		return err
	}
	if _, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 64<<10)); err != nil {
		return err
	}
	if half, ok := dst.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return nil
}
