// Package term is what commands share: their streams and exit codes, text and tables for people, progress,
// questions, and advice what to type.
package term

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Exit codes of every command.
const (
	ExitDone  = 0
	ExitNo    = 1
	ExitUsage = 2
)

// Streams are a command's standard streams: Out is for the answer, and Err for everything else.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer

	Piped io.Reader // In, until the command is canceled
	Raw   io.Writer // Out without its errors, for logs
	Typed []string  // the arguments of the command line
	Root  bool      // the user is root

	Commands *cobra.Command // all, to look up what a line needs
}

// ExitError ends a command with its own exit code. An empty message means that everything was
// already printed.
type ExitError struct {
	Code int
	Err  error
}

func (e *ExitError) Error() string {
	if e.Err == nil {
		return ""
	}
	return e.Err.Error()
}

func (e *ExitError) Unwrap() error { return e.Err }

// Usage turns an error into a usage error.
func Usage(err error) error {
	if err == nil {
		return nil
	}
	return &ExitError{Code: ExitUsage, Err: err}
}

// Usagef returns a usage error.
func Usagef(format string, args ...any) error { return Usage(fmt.Errorf(format, args...)) }

// Logger returns a log to Err. In a unit it omits the time, which the journal adds.
func (s Streams) Logger() *slog.Logger {
	opts := &slog.HandlerOptions{}
	if os.Getenv("JOURNAL_STREAM") != "" {
		opts.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}
	}
	return slog.New(slog.NewTextHandler(s.Err, opts))
}

// Progress prints a line about work in progress.
func (s Streams) Progress(format string, args ...any) {
	Printf(s.Err, "  "+format+"\n", args...)
}

// Warn prints a line about something that did not stop the work.
func (s Streams) Warn(format string, args ...any) {
	Printf(s.Err, "kbnode: warning: "+format+"\n", args...)
}

// CheckFile refuses a flag whose file does not exist.
func CheckFile(flag, name string) error {
	if name != "" && !exists(name) {
		return Usagef("%s: %w", flag, &text.Absent{Name: name, Instead: "name a file that does"})
	}
	return nil
}

// exists reports whether a file exists, or cannot be looked for.
func exists(name string) bool {
	_, err := os.Lstat(name)
	return !errors.Is(err, fs.ErrNotExist)
}

// CheckFolder refuses a flag whose file cannot be written, because of its folder or because it is "-", which
// no one means as a name. What is written is renamed to its name, so it would replace a link or a device.
func CheckFolder(flag, name string) error {
	switch name {
	case "":
		return nil
	case "-":
		return Usagef("%s - is not standard output; write the name of a file", flag)
	}
	dir := filepath.Dir(name)
	folder, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Usagef("%s: the directory %s does not exist; make it first", flag, dir)
	case err == nil && !folder.IsDir():
		return Usagef("%s: %s is not a directory; write the name of another file", flag, dir)
	case unix.Access(dir, unix.W_OK|unix.X_OK) != nil:
		return Usagef("%s: you may not write to the directory %s; write the name of another file", flag, dir)
	}
	if info, err := os.Lstat(name); err == nil && !info.Mode().IsRegular() {
		return Usagef("%s: %s is not a regular file; write the name of another file", flag, name)
	}
	return nil
}

// CheckReplaced is CheckFolder, and refuses a flag whose file is not of the kind that is written: it has something, and does
// not begin so.
func CheckReplaced(flag, name, begins string) error {
	if err := CheckFolder(flag, name); err != nil || name == "" {
		return err
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return Usagef("%s: %s cannot be read, and would be lost; write the name of another file", flag, name)
	}
	defer f.Close() //nolint:errcheck // opened for reading
	head := make([]byte, len(begins))
	if n, _ := io.ReadFull(f, head); n > 0 && string(head[:n]) != begins {
		return Usagef("%s: %s has something else, which would be lost; write the name of another file", flag, name)
	}
	return nil
}

// CheckNew refuses a flag whose file exists.
func CheckNew(flag, name string) error {
	if _, err := os.Lstat(name); err == nil {
		return Usagef("%s: %s already exists; choose another name", flag, name)
	}
	return CheckFolder(flag, name)
}
