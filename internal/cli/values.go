package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// typedValue is the value of a flag that has one.
type typedValue struct {
	pflag.Value
	flags    *pflag.FlagSet
	list     bool // it may be given again
	positive bool // only what is above 0 is a value: without the flag, it is 0, unless
	waits    bool // it has another default

	given  bool
	before string // what was typed before, if it is given
}

// valueError says what is wrong with a value, after the flag's name. A whole one needs no list of the flags after it.
type valueError struct {
	text  string
	whole bool
}

func (e valueError) Error() string { return e.text }

// Set refuses what is no value, but an accident of the shell or of editing the line; what the library takes for another
// number than people do, such as 010 for 8; and a 0 that would mean what the flag does if it is not there.
func (v *typedValue) Set(typed string) error {
	name, isFlag := strings.CutPrefix(typed, "--")
	name, _, _ = strings.Cut(name, "=")
	switch {
	case typed == "":
		return valueError{"is empty, perhaps because a variable of the shell is not set; write a value, or leave it out", true}
	case isFlag && v.flags.Lookup(name) != nil:
		return valueError{fmt.Sprintf("needs a value, and %s follows it; write the value before that", typed), true}
	case v.given && v.before != typed && !v.list:
		return valueError{fmt.Sprintf("is both %.60q and %.60q; give one of them", v.before, typed), true}
	}
	v.given, v.before = true, typed
	switch v.Type() {
	case "duration":
		if days, ok := strings.CutSuffix(typed, "d"); ok { // which the library does not know
			if count, err := strconv.ParseUint(days, 10, 16); err == nil {
				typed = fmt.Sprintf("%dh", 24*count)
			}
		}
	case "int", "int64", "uint", "uint64":
		if otherBase().MatchString(typed) {
			return valueError{text: "is not a decimal number; write it without leading zeros, letters and _"}
		}
	}
	if err := v.Value.Set(typed); err != nil {
		return err
	}
	switch zero := v.String(); {
	case !v.positive || zero != "0" && zero != "0s":
	case v.waits:
		return valueError{"is no time to wait; write a value above 0", true}
	default:
		return valueError{text: "is what leaving the flag out means; leave it out, or write a value above 0"}
	}
	return nil
}

var otherBase = lazy.Regexp(`^[+-]?0[0-9A-Za-z_]|_`)

// wrapValues checks the values of a command's flags. Where 0 means nothing else, their texts say so.
func wrapValues(cmd *cobra.Command) {
	wrap := func(f *pflag.Flag) {
		v := &typedValue{Value: f.Value, flags: cmd.Flags()}
		switch f.Value.Type() {
		case "int", "int64", "uint", "uint64", "duration":
			ownZero := strings.Contains(f.Usage, "0 for none") || strings.Contains(f.Usage, "no limit") ||
				f.Name == "gpu-count" || f.Name == "priority" // the one has its own advice, and 0 is a priority
			if f.DefValue == "0s" {
				f.DefValue = "0" // which the help of a wrapped value leaves out
			}
			v.waits = f.Name == "queue-timeout"
			v.positive = (f.DefValue == "0" || v.waits) && !ownZero
		case "string":
		case "stringSlice", "stringArray", "intSlice":
			v.list = true
			if f.DefValue == "[]" {
				f.DefValue = "" // likewise
			}
		default:
			return
		}
		f.Value = v
	}
	cmd.Flags().VisitAll(wrap)
	cmd.PersistentFlags().VisitAll(wrap)
}

// units are those of a time as people write them, without a plural's s.
var units = map[string]time.Duration{
	"": 0, "s": time.Second, "sec": time.Second, "second": time.Second, "m": time.Minute, "min": time.Minute, "minute": time.Minute,
	"h": time.Hour, "hr": time.Hour, "hour": time.Hour, "d": 24 * time.Hour, "day": 24 * time.Hour, "w": 7 * 24 * time.Hour, "week": 7 * 24 * time.Hour,
}

// peopleTime matches 5min, "10 m", "2 hours ago", 1h30.
var peopleTime = lazy.Regexp(`^(\d{1,4}) ?([a-z]*?)s?(?: ?(\d{1,4}) ?([a-z]*?)s?)?(?: ago)?$`)

// likelyTimes returns a time as flags take it for one as people write it, or some that a bare number may mean.
func likelyTimes(typed string) []string {
	m := peopleTime().FindStringSubmatch(strings.ToLower(strings.TrimSpace(typed)))
	if m == nil || strings.HasSuffix(m[0], "ms") { // milliseconds are no plural
		return nil
	}
	unit := func(word string) (time.Duration, bool) {
		if word == "" && strings.HasSuffix(strings.ToLower(typed), "s") {
			word = "s" // which was taken for a plural's
		}
		d, ok := units[word]
		return d, ok
	}
	first, ok := unit(m[2])
	count, _ := strconv.Atoi(m[1])
	switch {
	case !ok:
		return nil
	case first == 0 && m[3] == "":
		return []string{m[1] + "s", m[1] + "m", m[1] + "h"}
	}
	total := time.Duration(count) * first
	if m[3] != "" {
		second, ok := unit(m[4])
		more, _ := strconv.Atoi(m[3])
		if second == 0 {
			second = first / 60 // 1h30
		}
		if !ok || first == 0 {
			return nil
		}
		total += time.Duration(more) * second
	}
	switch {
	case total%time.Hour == 0:
		return []string{fmt.Sprintf("%dh", total/time.Hour)}
	case total%time.Minute == 0:
		return []string{strings.TrimSuffix(total.String(), "0s")}
	}
	return []string{total.String()}
}
