package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/text"
)

// argFlags are flags that a command does not have, by command: people write them before its argument.
var argFlags = map[string][]string{
	"queue": {"queue"}, "drain": {"slot", "slots", "gpu", "gpus"}, "resume": {"slot", "slots", "gpu", "gpus"}, "logs": {"slot", "gpu"},
	"check": {"file", "config"}, "submit": {"submission", "file"}, "runner": {"submission", "file"},
}

var (
	longDash  = lazy.Regexp(`^[–—][a-z][a-z-]*$`)
	slotWord  = lazy.Regexp(`(?i)^(?:gpu|slot)[-_]?([0-9]{1,5})$`)
	slotRange = lazy.Regexp(`(?i)^(?:gpu)?([0-9]{1,5})-(?:gpu)?([0-9]{1,5})$`)
)

// dash finds a flag whose dashes an editor or a web page made one long one.
func (h hints) dash(root *cobra.Command) error {
	cmd, _, _ := root.Find(h.args) // an unknown command is reported when it runs
	i := slices.IndexFunc(h.args, func(word string) bool {
		return longDash().MatchString(word) && cmd.Flag(strings.TrimLeft(word, "–—")) != nil
	})
	if i < 0 {
		return nil
	}
	return h.write(fmt.Sprintf("%q begins with a long dash", h.args[i]), h.with(i, "--"+strings.TrimLeft(h.args[i], "–—")))
}

// surplus explains arguments after those that a command takes.
func (h hints) surplus(cmd *cobra.Command, args []string) error {
	words := slices.Clone(h.args)
	for _, arg := range slices.Backward(args) {
		i := len(words) - 1
		for i >= 0 && words[i] != arg {
			i--
		}
		if i < 0 {
			return nil
		}
		words = slices.Delete(words, i, i+1)
	}
	return h.write(fmt.Sprintf("%s takes one argument at most, and not also %q", cmd.CommandPath(), text.Line(args[0], 60)), words)
}

// slots explains arguments that name no slot on any node, if it is plain what they mean.
func (h hints) slots(cmd *cobra.Command, args []string) error {
	k := slices.IndexFunc(args, func(arg string) bool { return !isSlot(arg) })
	if k < 0 {
		return nil
	}
	i := slices.Index(h.args, args[k])
	if i < 0 {
		return nil
	}
	says := fmt.Sprintf("there is no slot %q", text.Line(args[k], 60))
	// The next word that is no part of what is written here.
	end := i + 1
	for end < len(h.args) && !isSlot(h.args[end]) && !strings.HasPrefix(h.args[end], "-") {
		end++
	}
	list := slotList(args[k])
	switch {
	case len(list) > 0 && !slices.ContainsFunc(list, func(name string) bool { return !isSlot(name) }):
		return h.write(says, h.with(i, list...))
	case cmd.Flag("reason") != nil && (i > 1 && h.args[i-2] == "--reason" || strings.HasPrefix(h.args[i-1], "--reason=")):
		return h.write(says, slices.Replace(slices.Clone(h.args), i-1, end, strings.Join(h.args[i-1:end], " ")))
	case len(args) == 1 && args[0] == "all" && cmd.Flag("all") != nil:
		return h.write(says, h.with(i, "--all"))
	case (args[k] == "gpu" || args[k] == "slot") && i+1 < len(h.args) && isSlot(h.args[i+1]):
		return h.write(says, slices.Delete(slices.Clone(h.args), i, i+1))
	}
	return nil
}

// slotList splits names of slots as people write them, such as gpu3,gpu4, slot-3 and gpu0-3.
func slotList(s string) (list []string) {
	const most = 64
	for _, name := range strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ' ' }) {
		if m := slotWord().FindStringSubmatch(name); m != nil {
			list = append(list, "gpu"+m[1])
			continue
		}
		if m := slotRange().FindStringSubmatch(name); m != nil {
			first, _ := strconv.Atoi(m[1])
			last, _ := strconv.Atoi(m[2])
			if first < last && last-first < most {
				for k := first; k <= last; k++ {
					list = append(list, plan.SlotName(k))
				}
				continue
			}
		}
		list = append(list, name)
	}
	return list
}

func isSlot(word string) bool {
	_, ok := node.SlotNumber(word)
	return ok
}
