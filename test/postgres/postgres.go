// Package postgres gives tests a PostgreSQL of their own: on a socket in a
// directory of its own, with no port, no service and nothing left afterward, also
// when the test is killed.
package postgres

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/gpu-mode/kbnode/test/must"
)

//go:embed server.sh
var script string

//go:embed schema.sql
var schema []byte

// Server is a PostgreSQL with the users postgres (no password), secretive (who
// needs one) and stranger (who may not connect). New databases have kernelbot's
// tables: they are copies of template1.
type Server struct {
	Dir   string // of the socket
	stdin io.Closer
	cmd   *exec.Cmd
}

// Start starts the newest PostgreSQL that is installed.
func Start() (s *Server, err error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return nil, errors.New("no PostgreSQL is installed below /usr/lib/postgresql; run make db-deps")
	}
	// A socket's path has 107 bytes at most, so TMPDIR is not asked.
	dir, err := os.MkdirTemp("/tmp", "kbnode-postgres-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	file := filepath.Join(dir, "schema.sql")
	if err := os.WriteFile(file, schema, 0o644); err != nil {
		return nil, err
	}
	cmd := exec.Command("sh", "-c", script, "server.sh", filepath.Dir(slices.Max(found)), dir, file)
	cmd.Dir = "/"
	// A group of its own: a Ctrl-C is for the test, whose end the script sees.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if os.Getuid() == 0 { // PostgreSQL refuses to run as root
		u, err := user.Lookup("postgres") // as the package makes
		if err != nil {
			return nil, err
		}
		uid, _ := strconv.Atoi(u.Uid)
		gid, _ := strconv.Atoi(u.Gid)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(dir, uid, gid); err != nil {
			return nil, err
		}
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if line, _ := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		return nil, fmt.Errorf("start PostgreSQL: %w\n%s", cmd.Wait(), stderr.Bytes())
	}
	return &Server{dir, stdin, cmd}, nil
}

// DSN is the address of a database for a user, without a password.
func (s *Server) DSN(user, database string) string {
	return fmt.Sprintf("host=%s user=%s dbname=%s", s.Dir, user, database)
}

// Stop ends the server and removes all that it left.
func (s *Server) Stop() error { return errors.Join(s.stdin.Close(), s.cmd.Wait()) }

// Main runs the tests of a package with a server, and returns the exit status.
func Main(server **Server, run func() int) int {
	s, err := Start()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*server = s
	code := run()
	if err := s.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// Connect connects to a database as its administrator.
func (s *Server) Connect(t *testing.T, database string) *pgx.Conn {
	t.Helper()
	c, err := pgx.Connect(t.Context(), s.DSN("postgres", database))
	must.Do(t, err)
	t.Cleanup(func() { _ = c.Close(context.Background()) })
	return c
}

// New creates a database with kernelbot's tables.
func (s *Server) New(t *testing.T) (dsn string, admin *pgx.Conn) {
	t.Helper()
	name := fmt.Sprint("kernelbot", databases.Add(1))
	Exec(t, s.Connect(t, "postgres"), "CREATE DATABASE "+name)
	return s.DSN("postgres", name), s.Connect(t, name)
}

var databases atomic.Int32

// Exec executes a statement.
func Exec(t *testing.T, c *pgx.Conn, statement string, args ...any) {
	t.Helper()
	if _, err := c.Exec(t.Context(), statement, args...); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// Rows counts the rows of kernelbot's tables that have any.
func Rows(t *testing.T, c *pgx.Conn) map[string]int {
	t.Helper()
	count := map[string]int{}
	for _, table := range []string{"leaderboard", "gpu_type", "user_info", "code_files", "submission", "submission_job_status", "runs"} {
		var n int
		must.Do(t, c.QueryRow(t.Context(), "SELECT count(*) FROM leaderboard."+table).Scan(&n))
		if n > 0 {
			count[table] = n
		}
	}
	return count
}
