package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/machine/slot"
	"github.com/gpu-mode/kbnode/internal/node/reconcile"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/plan/config"
	"github.com/gpu-mode/kbnode/internal/std/cpuset"
	"github.com/gpu-mode/kbnode/internal/std/lazy"
	"github.com/gpu-mode/kbnode/internal/std/limit"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Selection names slots of a node, as people write them.
type Selection struct {
	All   bool
	Names []string
}

// In returns the selected ones of a node's slots.
func (s Selection) In(slots []plan.Slot) ([]plan.Slot, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if s.All {
		return slots, nil
	}
	var chosen []plan.Slot
	for _, name := range s.Names {
		k, ok := SlotNumber(name)
		i := slices.IndexFunc(slots, func(s plan.Slot) bool { return s.Index == k })
		if !ok || i < 0 {
			return nil, config.BadInput("this node has no slot %q; it has %s", name, SlotNames(slots))
		}
		chosen = append(chosen, slots[i])
	}
	return chosen, nil
}

// Check returns what is wrong with the selection on any node.
func (s Selection) Check() error {
	switch {
	case s.All && len(s.Names) > 0:
		return config.BadInput("--all means every slot; leave out %s or --all", strings.Join(s.Names, " "))
	case !s.All && len(s.Names) == 0:
		return config.BadInput("no slot is named; write slots such as gpu3, or --all")
	}
	for i, name := range s.Names {
		if _, ok := SlotNumber(name); ok {
			continue
		}
		if i+1 < len(s.Names) && (name == "gpu" || name == "slot") { // gpu 3
			name += " " + s.Names[i+1]
		}
		likely := strings.Join(LikelySlots(name), " ")
		switch low := strings.ToLower(name); {
		case slices.Contains([]string{"all", "*", "gpu*"}, low):
			likely = "--all"
		case gpuID().MatchString(low):
			return config.BadInput("%.60q is a GPU; write its slot, such as gpu3: kbnode plan shows the PCI address of each slot's GPU, and kbnode inventory its UUID", name)
		}
		return config.BadInput("there is no slot %.60q; write %s", name, cmp.Or(likely, "slots such as gpu3"))
	}
	return nil
}

// maxLikely is how many slots a word may mean.
const maxLikely = 16

// oneSlot matches other names of a slot: GPU-3, slot 3, its agent's name, its units.
var oneSlot = lazy.Regexp(`^(?:[\w.-]*-)?(?:gpu|slot)[- ]?(\d+)(?:@[\w.-]*)?(?:\.(?:service|slice|socket))?$`)

// gpuID matches a PCI address, and what a UUID begins with.
var gpuID = lazy.Regexp(`^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$|^(?:gpu-|mig-)?[0-9a-f]{8}-[0-9a-f]{4}-`)

// LikelySlots returns the slots that people may mean by a word that is none: gpu0 to gpu3 by 0-3, gpu3 by GPU-3.
func LikelySlots(word string) (names []string) {
	word = strings.ToLower(word)
	plain := strings.NewReplacer("gpu-", "", "gpu", "", "[", "", "]", "", "{", "", "}", "", "..", "-", ":", "-").Replace(word)
	plain = strings.Join(strings.FieldsFunc(strings.ReplaceAll(plain, " - ", "-"), func(r rune) bool { return r == ' ' || r == ',' }), ",")
	numbers, err := cpuset.Parse(plain)
	if one := oneSlot().FindStringSubmatch(word); err != nil && one != nil {
		numbers, err = cpuset.Parse(one[1])
	}
	if err != nil || numbers.Len() > maxLikely {
		return nil
	}
	for _, k := range numbers.Ints() {
		if k >= config.MaxSlots { // the number of a build, perhaps
			return nil
		}
		names = append(names, fmt.Sprintf("gpu%d", k))
	}
	return names
}

// SlotNames returns the names of slots for a message.
func SlotNames(slots []plan.Slot) string {
	names := make([]string, len(slots))
	for i, s := range slots {
		names[i] = s.Name
	}
	return strings.Join(names, ", ")
}

// SlotNumber returns the number of a slot that people write as gpu3 or 3.
func SlotNumber(name string) (k int, ok bool) {
	n, err := strconv.ParseUint(strings.TrimPrefix(name, "gpu"), 10, 16)
	return int(n), err == nil
}

// Queues returns the queues of a plan's slots, in their order.
func Queues(p *plan.Plan) (queues []string) {
	for _, slot := range p.Slots {
		if !slices.Contains(queues, slot.Queue) {
			queues = append(queues, slot.Queue)
		}
	}
	return queues
}

// WaitDrained tells how far each slot is whenever that changes. With wait it returns when all are
// drained, or when ctx ends; without, after one look.
func WaitDrained(ctx context.Context, host *reconcile.Host, p *plan.Plan, slots []plan.Slot, wait bool, say func(slot plan.Slot, now string)) error {
	const drained = "drained"
	reported := map[int]string{}
	for {
		left := 0
		state, err := host.Observe(ctx, p)
		for _, sl := range slots {
			now := reported[sl.Index]
			if err == nil {
				now = drainWord(sl, state.Slot(sl.Index))
			}
			if now != drained && now != "" {
				left++
			}
			if reported[sl.Index] != now {
				say(sl, now)
				reported[sl.Index] = now
			}
		}
		if err == nil && (left == 0 || !wait) {
			return nil
		}
		if err == nil && limit.Sleep(ctx, time.Second) == nil {
			continue
		}
		if ctx.Err() != nil {
			err = errors.Join(err, fmt.Errorf("%w: %d %s not drained yet, and will be when their jobs are done; kbnode status shows them", context.Cause(ctx), left, text.Plural(left, "slot is", "slots are")))
		}
		return err
	}
}

// drainWord returns how far a slot is that takes no more jobs.
func drainWord(sl plan.Slot, ss slot.State) string {
	switch busy := ss.Busy(); {
	case busy != "":
		return "finishes " + strings.TrimSuffix(busy, " of slot "+sl.Name) + ", then takes no more"
	case ss.Agent.Running():
		return "its agent is stopping"
	}
	return "drained"
}

// Busy returns which of these slots run a job now.
func (n *Node) Busy(ctx context.Context, p *plan.Plan, slots []int) ([]int, error) {
	host, err := n.Open(ctx)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	state, err := host.Observe(ctx, p)
	if err != nil {
		return nil, err
	}
	var busy []int
	for _, ss := range state.Slots {
		if ss.Busy() != "" && slices.Contains(slots, ss.Index) {
			busy = append(busy, ss.Index)
		}
	}
	return busy, nil
}
