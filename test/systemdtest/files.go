package systemdtest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/plan"
)

func (s *Systemd) put(name, text string) error {
	name = filepath.Join(s.Root, name)
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		return err
	}
	return os.WriteFile(name, []byte(text), 0o600)
}

func (s *Systemd) get(elem ...string) string {
	data, _ := os.ReadFile(filepath.Join(append([]string{s.Root}, elem...)...)) // absent is empty
	return strings.TrimSpace(string(data))
}

// file returns the text of a unit file as it is on disk now.
func (s *Systemd) file(name string) (string, bool) {
	name = filepath.Join(s.Root, plan.UnitDir, name)
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return "", false
	}
	data, err := os.ReadFile(name)
	return string(data), err == nil
}

// settings returns the values of a setting in a unit file.
func settings(text, name string) []string {
	var values []string
	for line := range strings.Lines(text) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), name+"="); ok {
			values = append(values, v)
		}
	}
	return values
}

// setting returns the last value of a setting, which is the one that counts.
func setting(text, name string) string {
	values := settings(text, name)
	if len(values) == 0 {
		return ""
	}
	return values[len(values)-1]
}

// close removes the file of a socket that stops.
func (s *Systemd) close(name string) error {
	slot, ok := plan.OwnsUnit(name)
	if !ok || slot < 0 || !s.Listen || name != plan.JobSocket(slot) {
		return nil
	}
	err := os.Remove(filepath.Join(s.Root, plan.SocketPath(slot)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// listen creates what the unit of a slot's socket does.
func (s *Systemd) listen(slot int) error {
	socket := filepath.Join(s.Root, plan.SocketPath(slot))
	if err := os.Remove(socket); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.MkdirAll(filepath.Join(filepath.Dir(socket), "agent"), 0o700); err != nil { // its ExecStartPost=
		return err
	}
	return unix.Mknod(socket, unix.S_IFSOCK|0o660, 0)
}
