// Package compile compiles each source of a job once, although every program of the job starts with an empty home.
//
// A program finds the names of compilers on its PATH, and they lead to a client. The client asks the runner, which starts
// the compiler in a process of its own and answers each system call that names a file below a directory where programs
// may write. What is read there is copied first, so that the compiler reads what the runner has seen. What is written goes
// to files that have no name. So the runner knows all that a product depends on, and need not understand a compiler's
// options: a program that asks for the same while these files hold the same gets the same product.
package compile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a compiler to start, in the root directory.
type Process struct {
	Path  string
	Argv  []string
	Env   []string
	Files []*os.File // its descriptors 0, 1 and 2
	Umask int
}

// Starter starts compilers.
type Starter interface {
	// Start starts one that can write nowhere, has no network, and waits at each of Calls for an answer. It returns the
	// process ID, the file that has the calls (seccomp_unotify(2)), and a channel that gets the status when the process
	// and all of its group are gone. The channel gets none if the program that asked ends first.
	Start(Process) (pid int, calls *os.File, ended <-chan syscall.WaitStatus, err error)
	// Kill kills one and all of its group.
	Kill(pid int)
}

// Bounds, so that no program holds or fills the runner.
const (
	maxRequest  = 1 << 20   // bytes of a command line with its environment
	maxAsking   = 32        // clients at a time
	maxWorking  = 4         // what the runner does for them at a time; each may block a thread
	maxMessages = 8 << 20   // bytes of a compiler's output, and of its errors
	maxPath     = 1024      // bytes of the path of one
	maxFile     = 256 << 20 // bytes of a file that is read, or made
	maxFiles    = 2048      // that a compiler looks at or makes, below the directories of programs
	maxMemory   = 1 << 30   // bytes of files of compilers that run
	maxStore    = 512 << 20 // bytes of products that are kept
	maxProducts = 1024      // that are kept, each with a descriptor
	maxKnown    = 32 << 20  // bytes of what is known of them
	askLimit    = 10 * time.Second
	endLimit    = 10 * time.Second      // for processes that were killed
	lookAgain   = 50 * time.Millisecond // between two looks at how much compilers have written
)

// Limit is how long a compiler may run: as long as the program that compiles before the others.
const Limit = 300 * time.Second

// Service compiles for the programs of one job.
type Service struct {
	compilers map[string]string // paths by name
	leads     map[string]string // variables that name one, and its name
	random    string            // in names that stand for temporary directories
	working   chan struct{}
	links     links

	sync.Mutex
	entries map[key][]*entry
	count   int
	size    int64
	known   int64
}

// offered are the names of compilers that programs find, if they are installed.
var offered = []string{"cc", "c++", "gcc", "g++", "clang", "clang++", "nvcc", "hipcc"}

// variables name compilers: of Triton and setuptools, torch, and CMake.
var variables = []string{"CC", "CXX", "PYTORCH_NVCC", "CUDACXX"}

// New returns a Service for the compilers of an environment in which no submission has a say, nil if it has none. find
// finds a program. random are six characters that no source knows.
func New(env []string, find func(name string) (string, error), random string) *Service {
	s := &Service{
		compilers: map[string]string{}, leads: map[string]string{}, random: random,
		working: make(chan struct{}, maxWorking), entries: map[key][]*entry{}, links: links{to: map[string]string{}},
	}
	add := func(name string) bool {
		base := filepath.Base(name)
		path, err := find(name)
		if err != nil || !filepath.IsAbs(path) || s.compilers[base] != "" && s.compilers[base] != path {
			return false
		}
		s.compilers[base] = path
		return true
	}
	for _, name := range offered {
		add(name)
		add(machine + "-linux-gnu-" + name)
	}
	for _, v := range variables {
		name := lookup(env, v)
		if name == "" || strings.ContainsAny(name, " \t\n") || strings.Contains(name, "/") && !filepath.IsAbs(name) {
			continue // options, or a path in the job's directory
		}
		if add(name) {
			s.leads[v] = filepath.Base(name)
		}
	}
	if nvcc := s.compilers["nvcc"]; nvcc != "" && s.leads["PYTORCH_NVCC"] == "" {
		s.leads["PYTORCH_NVCC"] = "nvcc" // torch takes it from CUDA_HOME, by its path
	}
	if len(s.compilers) == 0 || !isClient {
		return nil
	}
	return s
}

// work waits until the runner may do something for a client.
func (s *Service) work() (done func()) {
	s.working <- struct{}{}
	return func() { <-s.working }
}

// rest lets others work, until again is called.
func (s *Service) rest() (again func()) {
	<-s.working
	return func() { s.working <- struct{}{} }
}

func lookup(env []string, name string) string {
	for _, kv := range env {
		if v, ok := strings.CutPrefix(kv, name+"="); ok {
			return v
		}
	}
	return ""
}

func set(env []string, name, value string) []string {
	env = slices.DeleteFunc(slices.Clone(env), func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	return append(env, name+"="+value)
}
