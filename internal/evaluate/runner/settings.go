package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// procSettings are the files of a process in /proc that another process of its user, or root, may write, whatever
// Landlock and ptrace(2) say; see proc(5). Files that only read what is written to them are not among them.
var procSettings = []string{"oom_score_adj", "coredump_filter", "autogroup"}

// procState is what these files of some processes held, by path.
type procState map[string]string

func recordProcState(pids []int) procState {
	s := procState{}
	for _, pid := range pids {
		for _, name := range procSettings {
			path := filepath.Join("/proc", strconv.Itoa(pid), name)
			if text, err := os.ReadFile(path); err == nil {
				s[path] = setting(string(text))
			}
		}
	}
	return s
}

// setting returns a setting in the form in which it is written: autogroup is "/autogroup-ID nice N", and
// coredump_filter is hexadecimal without a mark.
func setting(text string) string {
	text = strings.TrimSpace(text)
	if _, nice, ok := strings.Cut(text, " nice "); ok {
		return nice
	}
	if len(text) == 8 {
		return "0x" + text
	}
	return text
}

// putBack puts back what programs changed, as far as this user may: a number could be kept there for the next one.
func (s procState) putBack() {
	for path, was := range s {
		if now, err := os.ReadFile(path); err == nil && setting(string(now)) != was {
			err := os.WriteFile(path, []byte(was), 0) // an error means that the user may not
			for range autogroupTries {
				if !errors.Is(err, unix.EAGAIN) {
					break
				}
				time.Sleep(autogroupPause)
				err = os.WriteFile(path, []byte(was), 0)
			}
		}
	}
}

// The kernel takes an autogroup's setting from a user only 0.1 s after the last one (kernel/sched/autogroup.c).
const (
	autogroupTries = 20
	autogroupPause = 20 * time.Millisecond
)

// lineage lists this process and those above it.
func lineage() []int {
	list := []int{os.Getpid()}
	for pid, ok := parentOf(os.Getpid()); ok && pid > 0 && len(list) < maxLineage; pid, ok = parentOf(pid) {
		list = append(list, pid)
	}
	return list
}

// maxLineage bounds the processes above this one that are looked at.
const maxLineage = 32

// ownScore is this process's oom_score_adj, open since before it hid, and what it was.
var ownScore struct {
	file *os.File
	was  []byte
}

// highestScore makes the kernel end a process, and those that it starts, first when memory runs out. A program may
// lower its own again.
const highestScore = "1000"

func openScore() {
	f, err := os.OpenFile("/proc/self/oom_score_adj", os.O_RDWR, 0)
	if err != nil {
		return
	}
	was := make([]byte, 16)
	if n, err := f.Read(was); err == nil {
		ownScore.file, ownScore.was = f, was[:n]
	}
}

// setScore changes this process's score, which children inherit. Without the right to, programs keep the runner's.
func setScore(score []byte) {
	if ownScore.file != nil {
		_, _ = ownScore.file.WriteAt(score, 0)
	}
}

// hideArgument overwrites an argument of this process, which every process may read. What has it as its value
// must be done with it.
func hideArgument(value string) {
	if value == "" || value == "-" {
		return
	}
	value = strings.Clone(value) // it may be in the argument
	for _, arg := range os.Args[1:] {
		option, has := strings.CutSuffix(arg, value)
		if !has || option != "" && (option[0] != '-' || !strings.HasSuffix(option, "=")) {
			continue
		}
		at := unsafe.Slice(unsafe.StringData(arg), len(arg)) //nolint:gosec // Go leaves arguments where the kernel wrote them
		for i := len(option); i < len(arg); i++ {
			at[i] = 'x'
		}
	}
}
