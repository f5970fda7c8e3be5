// Package split divides a machine's cores and memory among GPUs, in equal parts that are near
// them. It is pure, like its caller, package plan.
package split

import (
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/plan/inventory"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

const (
	// advisedCores is what the vendors' guide recommends for each GPU; MinCores is its minimum.
	advisedCores = 16
	// MinCores is the minimum of a slot, from the vendors' guide.
	MinCores = 8
	// MinSlotMemory is the minimum of a slot, in bytes, from the vendors' guide.
	MinSlotMemory = 16 << 30
	// minLocalCores is how small a slot may get, in cores, to keep its CPUs on
	// its GPU's package.
	minLocalCores = 2
)

// Input is what the split of a machine depends on. A request of 0 means
// "decide".
type Input struct {
	CPU           inventory.CPU
	Memory        inventory.Memory
	GPUs          []GPU // one per slot, in the order of the slots
	CPUsPerSlot   int   // hardware threads
	MemoryPerSlot int64 // bytes
	ReserveCPUs   int   // hardware threads that the system keeps, at least; negative for none
	ReserveMemory int64 // bytes that the system keeps, at least
	Virt          bool  // the topology is what a hypervisor shows
}

// GPU is what a slot gets a block for: a GPU, or nothing but a place.
type GPU struct {
	NUMANode   int    // of the PCI device; -1 if unknown
	MemoryNode int    // the node that is the GPU's own memory; -1 if none
	Name       string // for messages: "slot gpu3"
	None       bool   // there is no GPU: any package will do
}

// Block is what one slot gets.
type Block struct {
	CPUs, MemoryNodes cpuset.Set
	MemoryBytes       int64 // whole MiB
	ReserveBytes      int64 // of the system's reserve, its part on the NUMA nodes with the smallest share
}

// Result is a split: disjoint blocks of equal size and whole cores, each
// within one package, and what no slot gets.
type Result struct {
	Blocks         []Block // in the order of the GPUs
	ReservedCPUs   cpuset.Set
	ReservedMemory int64  // bytes
	Unreserved     string // what slots would have without a reserve, if that is the guide's minimum; else ""
	Warnings       []string
}

// Machine gives every GPU the same number of cores, as near to it as the machine
// allows. It depends only on its input, so an unchanged machine gets the same split again.
// An error is a refusal that says what to change.
func Machine(in Input) (Result, error) {
	s, err := newSplitter(in)
	if err != nil {
		return Result{}, err
	}
	s.Blocks, s.ReservedCPUs = make([]Block, len(in.GPUs)), s.allowed
	for _, n := range s.ram {
		s.ReservedMemory += n.bytes
	}
	if len(in.GPUs) == 0 {
		return s.Result, nil
	}
	if err := s.shareCores(); err != nil {
		return Result{}, err
	}
	for i, cores := range s.cores {
		for _, c := range cores {
			s.Blocks[i].CPUs = s.Blocks[i].CPUs.Union(cpuset.Of(c.cpus...))
		}
		s.ReservedCPUs = s.ReservedCPUs.Difference(s.Blocks[i].CPUs)
	}
	if err := s.shareMemory(); err != nil {
		return Result{}, err
	}
	s.warnReserve(s.ReservedCPUs.Len())
	return s.Result, nil
}

// splitter is one run of the split.
type splitter struct {
	Result
	in       Input              // cleaned
	merged   cpuset.Set         // nodes with memory that are taken as one; the kernel accepts no other in a cpuset
	packages []cpuPackage       // by id
	total    int                // cores in all packages
	width    int                // threads of a core
	byNode   bool               // the packages are NUMA nodes
	allowed  cpuset.Set         // every CPU that slots and system share
	ram      []ramNode          // by ID
	distance func(a, b int) int // of NUMA nodes
	away     [][]int            // [gpu][package]: NUMA distance; 0 if the package is the GPU's own
	where    []int              // [gpu]: index of its package
	cores    [][]physCore       // [gpu]
	warned   int                // number of warnings before memory was divided
}

func (s *splitter) warn(format string, args ...any) {
	s.Warnings = append(s.Warnings, fmt.Sprintf(format, args...))
}

// shareCores gives every slot the same number of cores.
func (s *splitter) shareCores() error {
	gpus := len(s.in.GPUs)
	switch {
	case gpus > config.MaxSlots:
		return fmt.Errorf("%d GPUs are more than kbnode supports; choose at most %d with --gpu-count (gpu_count)", gpus, config.MaxSlots)
	case gpus > s.total:
		return fmt.Errorf("%d GPUs but only %s for slots, and every slot needs its own core; choose at most %d GPUs with --gpu-count (gpu_count)",
			gpus, s.describe(s.total), s.total)
	}
	s.findHomes()
	k, least, err := s.chooseSize()
	if err != nil {
		return err
	}

	// A package whose caches or nodes hold slightly fewer cores per slot sets
	// the size for all.
	slots := map[int][]int{} // by package
	for i, p := range s.where {
		slots[p] = append(slots[p], i)
	}
	size := k
	for p, list := range slots {
		_, n := s.packages[p].shape(len(list), k, least)
		size = min(size, n)
	}
	s.cores = make([][]physCore, gpus)
	for p, list := range slots {
		s.assignBlocks(&s.packages[p], list, size)
	}
	return nil
}

// chooseSize decides how many cores a slot gets and on which package, and how
// few it may get in exchange for a better place.
func (s *splitter) chooseSize() (k, least int, err error) {
	gpus := len(s.in.GPUs)
	spare := s.total - gpus // cores that need not go to a slot
	reserve := s.coresFor(s.in.ReserveCPUs)
	switch {
	case reserve > spare:
		return 0, 0, fmt.Errorf("reserve.cpus: %d of %d CPUs leave too few for %s with a core (%d CPUs) each; write at most %d (--reserve-cpus), or choose fewer GPUs with --gpus (gpus)",
			s.in.ReserveCPUs, s.allowed.Len(), text.Count(gpus, "slot"), s.width, s.unusable()+spare*s.width)
	case s.in.CPUsPerSlot > 0:
		// The default reserve gives way to a request for CPUs, even for all of them: the scripts
		// before kbnode gave out every CPU, and an operator who asks for that many means it.
		if k, err = s.wantedCores(reserve); err != nil {
			return 0, 0, err
		}
		for _, local := range []bool{true, false} {
			for keep := 1; keep >= 0; keep-- {
				if s.fits(k, keep, reserve, local) {
					s.assignPackages(k, keep)
					return k, k, nil
				}
			}
		}
		return 0, 0, s.tooMany(s.total / gpus)
	case s.in.ReserveCPUs == 0:
		reserve = min(s.coresFor(s.defaultReserve()), spare)
	}
	k, keep, local := s.largestSize(reserve)
	if k == 0 && s.unpair() {
		k, keep, local = s.largestSize(reserve)
	}
	if k == 0 {
		return 0, 0, errors.New("the CPUs cannot be split into equal blocks; choose fewer GPUs with --gpus (gpus)")
	}
	if s.in.ReserveCPUs == 0 && !s.in.GPUs[0].None {
		k, keep = s.growToAdvised(k, keep, reserve, local)
	}
	s.assignPackages(k, keep)
	return k, (3*k + 3) / 4, nil
}

// growToAdvised shrinks the default reserve, down to one core, if slots then have as many cores as
// the vendors' guide recommends, or its minimum. On the guide's own machines they have that
// many only without any reserve, which only an operator may choose.
func (s *splitter) growToAdvised(k, keep, reserve int, local bool) (cores, reserved int) {
	for _, advised := range []int{advisedCores, MinCores} {
		if k >= advised {
			return k, keep
		}
		for reserved := keep; reserved >= 0; reserved-- {
			if s.fits(advised, reserved, min(s.coresFor(1), reserve), local) {
				return advised, reserved
			}
		}
	}
	if s.fits(MinCores, 0, 0, local) {
		s.Unreserved = fmt.Sprintf("with no CPUs reserved for the system, each slot would have %d cores; write reserve.cpus: 0 (--reserve-cpus 0) to let the system run on the slots' CPUs", MinCores)
	}
	return k, keep
}

// wantedCores returns the requested size of a slot in cores, or a refusal if the machine does
// not have it.
func (s *splitter) wantedCores(reserve int) (int, error) {
	most, cpus := s.largestFit(0, reserve, false), s.in.CPUsPerSlot
	if cpus > most*s.width && s.unpair() {
		most = s.largestFit(0, reserve, false)
	}
	k := cpus / s.width
	switch {
	case cpus > most*s.width:
		return 0, s.tooMany(most)
	case k == 0:
		return 0, fmt.Errorf("cpus_per_slot: %d is less than the %d threads of a core; write %d (--cpus-per-slot)", cpus, s.width, s.width)
	case cpus%s.width != 0:
		return 0, fmt.Errorf("cpus_per_slot: %d is not a multiple of the %d threads of a core; write %d or %d (--cpus-per-slot)",
			cpus, s.width, k*s.width, (k+1)*s.width)
	}
	return k, nil
}

// tooMany returns the refusal of a request for more CPUs than slots of most cores have.
func (s *splitter) tooMany(most int) error {
	besides, lower := "", ""
	if s.in.ReserveCPUs > 0 {
		besides = fmt.Sprintf(" in addition to the reserve of %d CPUs", s.in.ReserveCPUs)
		lower = ", lower reserve.cpus (--reserve-cpus)"
	}
	return fmt.Errorf("cpus_per_slot: %d CPUs for each of %s do not fit on %s of %s%s; write at most %d (--cpus-per-slot)%s or choose fewer GPUs with --gpus (gpus)",
		s.in.CPUsPerSlot, text.Count(len(s.in.GPUs), "slot"), s.describe(s.total), text.Count(len(s.packages), s.packageWord()), besides, most*s.width, lower)
}

// largestSize finds the most cores that every slot can get. Slots stay on their
// GPUs' packages unless that makes them very small. keep is the number of cores
// per package that no slot gets, for interrupts; it is 0 if it would cost a
// slot more than a quarter of its cores, or if nothing is to be reserved.
func (s *splitter) largestSize(reserve int) (k, keep int, local bool) {
	for _, onNode := range []bool{true, false} {
		n, reserved := s.largestFit(1, reserve, onNode), 1
		if without := s.largestFit(0, reserve, onNode); 4*n < 3*without || s.in.ReserveCPUs < 0 {
			n, reserved = without, 0
		}
		if onNode || n > k {
			k, keep, local = n, reserved, onNode
		}
		if k >= minLocalCores {
			break
		}
	}
	return k, keep, local
}

// largestFit returns the largest size of a slot, in cores, that fits.
func (s *splitter) largestFit(keep, reserve int, local bool) int {
	return sort.Search(s.total/len(s.in.GPUs), func(n int) bool { return !s.fits(n+1, keep, reserve, local) })
}

// fits reports whether every slot can have k cores within a package, its own
// package if local, with keep cores left over on each package and reserve in all.
func (s *splitter) fits(k, keep, reserve int, local bool) bool {
	if s.total-k*len(s.in.GPUs) < reserve {
		return false
	}
	where := s.seat(k, keep)
	for gpu, p := range where {
		if local && s.away[gpu][p] > 0 {
			return false
		}
	}
	return where != nil
}

// room returns how many blocks of k cores each package holds.
func (s *splitter) room(k, keep int) []int {
	out := make([]int, len(s.packages))
	for i := range s.packages {
		cores := s.packages[i].cores
		out[i] = min((len(cores)-keep)/k, len(carve(cores, k)))
	}
	return out
}

// coresFor returns how many cores must stay free for the system to have this
// many CPUs. CPUs that no slot can have count toward them.
func (s *splitter) coresFor(cpus int) int {
	cpus = max(0, cpus-s.unusable())
	return cpus/s.width + min(1, cpus%s.width)
}

// unusable returns the number of CPUs that only the system can have.
func (s *splitter) unusable() int { return s.allowed.Len() - s.total*s.width }

// defaultReserve is one core in 16, at least 2 and at most 8, in CPUs.
func (s *splitter) defaultReserve() int { return min(max(s.total/16, 2), 8) * s.width }

func (s *splitter) warnReserve(left int) {
	want := s.defaultReserve()
	switch {
	case left >= want || s.in.ReserveCPUs != 0:
	case left == 0:
		s.warn("the slots take every CPU, so the system has to run on theirs; choose fewer GPUs with --gpus (gpus) or lower cpus_per_slot (--cpus-per-slot)")
	default:
		s.warn("only %d %s left for the system; %d are recommended; choose fewer GPUs with --gpus (gpus) or lower cpus_per_slot (--cpus-per-slot)",
			left, text.Plural(left, "CPU is", "CPUs are"), want)
	}
}

// describe formats k cores: "48 cores (96 CPUs)".
func (s *splitter) describe(k int) string {
	return fmt.Sprintf("%s (%s)", text.Count(k, "core"), text.Count(k*s.width, "CPU"))
}

// names lists GPUs for a message.
func (s *splitter) names(gpus []int) string {
	var out []string
	for _, i := range gpus {
		out = append(out, s.in.GPUs[i].Name)
	}
	slices.Sort(out)
	return strings.Join(slices.Compact(out), ", ")
}
