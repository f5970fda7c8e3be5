package notify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// sendTime bounds one delivery.
const sendTime = 30 * time.Second

// maxURL bounds the file of an address, in bytes.
const maxURL = 4 << 10

// target is where notifications go.
type target interface {
	// send delivers one. A *refusedError means that another try would not help.
	send(ctx context.Context, doc []byte) error
	// String names the target, without secrets.
	String() string
}

// targets returns the configured targets, by the key of each.
func targets(c config.Notify, network http.RoundTripper, output io.Writer) map[string]target {
	all := map[string]target{}
	if len(c.Command) > 0 {
		all["command"] = command{args: c.Command, output: output, within: sendTime}
	}
	if c.URL != "" {
		all["url"] = webhook{address: c.URL, network: network}
	}
	return all
}

// refusedError is an answer that another try would not change.
type refusedError struct{ status string }

func (e *refusedError) Error() string { return "it answers " + e.status }

type webhook struct {
	address string // or a file's path
	network http.RoundTripper
}

func (w webhook) String() string { return config.HideWebhook(w.address) }

// read returns the address.
func (w webhook) read() (string, error) {
	if !strings.HasPrefix(w.address, "/") {
		return w.address, nil
	}
	if err := rootsOnly(w.address, 0o077); err != nil {
		return "", err
	}
	text, err := limit.ReadFile(w.address, maxURL)
	if err != nil {
		return "", err
	}
	address := strings.TrimSpace(string(text))
	if !config.NotifyURL().MatchString(address) {
		return "", fmt.Errorf("%s has no https address; write one into it, and nothing else", w.address)
	}
	return address, nil
}

// send posts a notification. It follows no redirection, which may lead to another host.
func (w webhook) send(ctx context.Context, doc []byte) error {
	address, err := w.read()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, sendTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(doc))
	if err != nil {
		return errors.New("it is not a valid address") // err has parts of it
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "kbnode")
	client := &http.Client{Transport: w.network, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // it repeats the address
	}
	if err != nil {
		return err
	}
	_ = resp.Body.Close() // the answer is of no interest
	switch code := resp.StatusCode; {
	case code >= 200 && code < 300:
		return nil
	case code >= 500, code == http.StatusTooManyRequests, code == http.StatusRequestTimeout:
		return fmt.Errorf("it answers %d %s", code, http.StatusText(code))
	default:
		return &refusedError{fmt.Sprintf("%d %s", code, http.StatusText(code))}
	}
}

type command struct {
	args   []string
	output io.Writer // nil discards it: it may have secrets
	within time.Duration
}

func (c command) String() string { return c.args[0] }

// send runs the command, in a PID namespace and a process group of its own: what it leaves is killed with its end, also in
// another session. The end of a namespace waits for all that is in it, so that a process that hangs in the kernel holds it: send
// then returns without it, and starts no other until it has ended.
func (c command) send(ctx context.Context, doc []byte) error {
	if err := rootsOnly(c.args[0], 0o022); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.within, fmt.Errorf("it did not end within %s, and was killed", c.within))
	defer cancel()
	_, err := limit.Call(c.args[0], "its last run", 2*c.within, func() (struct{}, error) { return struct{}{}, c.run(ctx, doc) })
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (c command) run(ctx context.Context, doc []byte) error {
	cmd, err := c.start(ctx, doc, syscall.CLONE_NEWPID)
	if err != nil { // as where kbnode may make no namespaces: then the group alone is killed
		cmd, err = c.start(ctx, doc, 0)
	}
	if err != nil {
		return err
	}
	// The daemon's own value would spare it while jobs are killed.
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", cmd.Process.Pid), []byte("0"), 0)
	err = cmd.Wait()
	_ = cmd.Cancel()
	return err
}

func (c command) start(ctx context.Context, doc []byte, namespaces uintptr) (*exec.Cmd, error) {
	cmd := exec.CommandContext(ctx, c.args[0], c.args[1:]...)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C.UTF-8"}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(doc), c.output, c.output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: namespaces}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	return cmd, cmd.Start()
}

// rootsOnly returns why others than root could replace a file, or do what these bits of its mode say; nil if they cannot.
// The user of this process counts as root.
func rootsOnly(name string, bits fs.FileMode) error {
	fi, err := os.Stat(name) // which ends at links in a circle
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a file", name)
	}
	if err != nil {
		return err
	}
	return closed(name, bits)
}

// closed is rootsOnly for a path, the directories above it, and what links there lead to.
func closed(path string, bits fs.FileMode) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return err
	}
	mode, owner := fi.Mode(), int(fi.Sys().(*syscall.Stat_t).Uid) //nolint:forcetypeassert // on Linux
	switch {
	case owner != 0 && owner != os.Geteuid():
		return fmt.Errorf("%s belongs to user %d; type sudo chown -h root %[1]s", path, owner)
	case mode&fs.ModeSymlink != 0:
		to, err := os.Readlink(path)
		if err != nil {
			return err
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		if err := closed(to, bits); err != nil {
			return err
		}
	case mode.IsDir() && mode&fs.ModeSticky != 0: // in it, no one can replace root's files
	case mode.Perm()&bits != 0:
		return fmt.Errorf("%s has mode %04o, which lets others in; type sudo chmod %04[3]o %[1]s", path, mode.Perm(), mode.Perm()&^bits)
	}
	if path == "/" {
		return nil
	}
	return closed(filepath.Dir(path), 0o022)
}
