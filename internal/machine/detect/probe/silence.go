package probe

import (
	"context"
	"maps"
	"strconv"
	"sync"

	"github.com/gpu-mode/kbnode/internal/plan/nvml"
)

// Silence remembers which GPUs hung, so that only the first Run waits for them. The zero value is ready to use, and so is
// nil, which remembers nothing. It knows GPUs by NVML's index, which is theirs as long as there are as many.
type Silence struct {
	mu    sync.Mutex
	count int // of all GPUs, when these hung
	hung  map[int]nvml.Hung
	asked map[int]bool // those that are being asked again
}

func (s *Silence) add(count int, hung []nvml.Hung) {
	if s == nil || len(hung) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hung == nil {
		s.hung, s.asked = map[int]nvml.Hung{}, map[int]bool{}
	}
	s.count = count
	for _, h := range hung {
		s.hung[h.Index] = h
	}
}

func (s *Silence) forget() {
	if s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		clear(s.hung)
	}
}

// recall returns the GPUs that hung, and how many there were in all.
func (s *Silence) recall() (hung map[int]nvml.Hung, count int) {
	hung = map[int]nvml.Hung{}
	if s == nil {
		return hung, 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.Copy(hung, s.hung)
	return hung, s.count
}

// ask reads GPUs that hung again, each on its own, and does not wait for that.
func (s *Silence) ask(opts Options, indices []int) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, i := range indices {
		if !s.asked[i] {
			s.asked[i] = true
			go s.askOne(opts, i)
		}
	}
}

// askOne reads one GPU, and forgets that it hung if it answers or does not exist anymore. One that a probe hangs on is
// still locked by that.
func (s *Silence) askOne(opts Options, index int) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout+opts.patience)
	defer cancel()
	r, ended, err := round(ctx, opts, "--only", strconv.Itoa(index))
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.asked, index)
	if err == nil && ended && len(r.Hung) == 0 {
		delete(s.hung, index)
	}
}
