package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"time"
)

// qmp is QEMU's control socket. Calls are made one at a time.
type qmp struct {
	conn net.Conn
	in   *bufio.Reader
}

func dialQMP(ctx context.Context, path string) (*qmp, error) {
	conn, err := dialWhenThere(ctx, path)
	if err != nil {
		return nil, err
	}
	q := &qmp{conn: conn, in: bufio.NewReader(conn)}
	if _, err := q.call(ctx, "qmp_capabilities", nil); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return q, nil
}

// dialWhenThere waits for QEMU to open its socket.
func dialWhenThere(ctx context.Context, path string) (net.Conn, error) {
	var d net.Dialer
	for {
		conn, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("dial QEMU: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// call runs one command and returns what it answers; events are passed over.
func (q *qmp) call(ctx context.Context, command string, args any) (json.RawMessage, error) {
	stop := context.AfterFunc(ctx, func() { _ = q.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	request := map[string]any{"execute": command}
	if args != nil {
		request["arguments"] = args
	}
	b, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	if _, err := q.conn.Write(append(b, '\n')); err != nil {
		return nil, fmt.Errorf("tell QEMU %s: %w", command, err)
	}
	for {
		line, err := q.in.ReadBytes('\n')
		if err != nil {
			return nil, fmt.Errorf("wait for QEMU's %s: %w", command, err)
		}
		var reply struct {
			Return json.RawMessage `json:"return"`
			Error  *struct {
				Desc string `json:"desc"`
			} `json:"error"`
		}
		if err := json.Unmarshal(line, &reply); err != nil {
			return nil, fmt.Errorf("read QEMU's %s: %w", command, err)
		}
		switch {
		case reply.Error != nil:
			return nil, fmt.Errorf("tell QEMU %s: %s", command, reply.Error.Desc)
		case reply.Return != nil:
			return reply.Return, nil
		}
	}
}

// migrated waits until the migration under way, in or out, has ended.
func (q *qmp) migrated(ctx context.Context) error {
	for {
		b, err := q.call(ctx, "query-migrate", nil)
		if err != nil {
			return err
		}
		var st struct {
			Status string `json:"status"`
			Desc   string `json:"error-desc"`
		}
		if err := json.Unmarshal(b, &st); err != nil {
			return err
		}
		switch st.Status {
		case "completed":
			return nil
		case "failed", "cancelled":
			return fmt.Errorf("migration %s: %s", st.Status, st.Desc)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}
