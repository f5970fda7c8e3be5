package config

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/std/lazy"
)

// Schedule is when something is done, in cron's format.
type Schedule struct {
	// Text is the five fields, or a word such as @daily, separated by single blanks.
	Text string
	// Fields are the values of minute, hour, day of month, month and day of week
	// (0 is Sunday), sorted. Nil means all values.
	Fields [5][]int
}

// Off means no schedule, whatever a lower layer chose.
const Off = "off"

// cronFields are the bounds of each field and the names of its values; the first
// name is that of the lower bound.
var cronFields = [5]struct {
	name     string
	low, top int
	words    []string
}{
	{"minute", 0, 59, nil},
	{"hour", 0, 23, nil},
	{"day of the month", 1, 31, nil},
	{"month", 1, 12, []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"}},
	{"day of the week", 0, 7, []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}},
}

var cronWords = map[string]string{
	"@hourly": "0 * * * *", "@daily": "0 0 * * *", "@midnight": "0 0 * * *", "@weekly": "0 0 * * 0",
	"@monthly": "0 0 1 * *", "@yearly": "0 0 1 1 *", "@annually": "0 0 1 1 *",
}

// ParseSchedule reads the five fields of a cron line, or one of cron's words for a time.
func ParseSchedule(text string) (Schedule, error) {
	words := strings.Fields(text)
	s := Schedule{Text: strings.Join(words, " ")}
	if len(words) == 1 && strings.HasPrefix(words[0], "@") {
		long, ok := cronWords[words[0]]
		if !ok {
			return s, fmt.Errorf("%.40q has no time of day; write a schedule such as '0 3 * * *', or @daily", text)
		}
		words = strings.Fields(long)
	}
	if len(words) != len(s.Fields) {
		return s, fmt.Errorf("%.80q has %d fields, but a cron schedule has 5 (minute, hour, day of month, month, day of week); write one such as '0 3 * * *', or @daily", text, len(words))
	}
	for i, word := range words {
		values, err := cronValues(i, word)
		if err != nil {
			return s, err
		}
		s.Fields[i] = values
	}
	return s, nil
}

// cronValues reads one field: a list of numbers, names and ranges, with steps.
func cronValues(field int, word string) ([]int, error) {
	f := cronFields[field]
	bad := fmt.Errorf("%.40q cannot be the %s; write *, or numbers from %d to %d such as %d, %d-%d or */2", word, f.name, f.low, f.top, f.low+1, f.low+1, f.low+3)
	var values []int
	for part := range strings.SplitSeq(word, ",") {
		span, stepText, stepped := strings.Cut(part, "/")
		low, top, step := f.low, f.top, 1
		if span != "*" {
			from, to, ranged := strings.Cut(span, "-")
			if !ranged {
				to = from
			}
			low, top = cronValue(field, from), cronValue(field, to)
			// Crons interpret a step without a range differently.
			if low < 0 || top < low || stepped && !ranged {
				return nil, bad
			}
		}
		if stepped {
			n, err := strconv.Atoi(stepText)
			if err != nil || n < 1 || n > f.top || strings.HasPrefix(stepText, "+") {
				return nil, bad
			}
			step = n
		}
		for v := low; v <= top; v += step {
			if field == 4 {
				values = append(values, v%7)
			} else {
				values = append(values, v)
			}
		}
	}
	slices.Sort(values)
	values = slices.Compact(values)
	if all := f.top - f.low + 1; len(values) == all || field == 4 && len(values) == 7 {
		return nil, nil
	}
	return values, nil
}

// cronValue returns a value of a field, -1 if it cannot be one.
func cronValue(field int, text string) int {
	f := cronFields[field]
	if i := slices.Index(f.words, strings.ToLower(text)); i >= 0 {
		return f.low + i
	}
	n, err := strconv.Atoi(text)
	if err != nil || len(text) > 2 || text[0] == '+' || n < f.low || n > f.top {
		return -1
	}
	return n
}

// Calendar returns the schedule in the format of systemd's OnCalendar. It
// returns an error if both a day of the month and a day of the week are given:
// cron runs on either, which systemd cannot express.
func (s Schedule) Calendar() (string, error) {
	if s.Fields[2] != nil && s.Fields[4] != nil {
		return "", fmt.Errorf("%q sets days of the month and of the week; cron runs on either, but this machine has only systemd timers, which cannot; set one of them", s.Text)
	}
	list := func(field int) string {
		if s.Fields[field] == nil {
			return "*"
		}
		var texts []string
		for _, v := range s.Fields[field] {
			if field == 4 {
				texts = append(texts, []string{"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"}[v])
			} else {
				texts = append(texts, fmt.Sprintf("%02d", v))
			}
		}
		return strings.Join(texts, ",")
	}
	days := ""
	if s.Fields[4] != nil {
		days = list(4) + " "
	}
	return fmt.Sprintf("%s*-%s-%s %s:%s:00", days, list(3), list(2), list(1), list(0)), nil
}

// NoLimit means that a job may take any time; so does "0".
const NoLimit = "none"

// TimeWarning says what ends a job before a step of kbnode pipeline does; "" for nothing.
func (j Job) TimeWarning() string {
	j.TimeLimit, j.MaxMinutes = cmp.Or(j.TimeLimit, DefaultTimeLimit), cmp.Or(j.MaxMinutes, DefaultJobMinutes)
	switch limit, err := j.Limit(); {
	case err != nil:
	case limit > 0 && limit < StepMinutes*60:
		return fmt.Sprintf("job.time_limit: %s is less than the %d minutes that a step of kbnode pipeline has, and public problems need up to that; write %[2]dm or more", j.TimeLimit, StepMinutes)
	case limit == 0 && j.MaxMinutes < StepMinutes:
		return fmt.Sprintf("job.max_minutes: without a time limit, systemd kills the job of a stopping agent after %d minutes, and public problems need up to %d; write %[2]d or more", j.MaxMinutes, StepMinutes)
	}
	return ""
}

// maxLimit is the longest time limit in seconds, 30 days.
const maxLimit = 30 * 24 * 3600

// limitForm matches a time as people write it, in whole hours, minutes and seconds.
var limitForm = lazy.Regexp(`^([1-9][0-9]{0,3}h)?([1-9][0-9]{0,4}m)?([1-9][0-9]{0,6}s)?$`)

// Limit returns how long a job may take, in seconds; 0 for any time.
func (j Job) Limit() (seconds int64, err error) {
	switch j.TimeLimit {
	case "", NoLimit, "0":
		return 0, nil
	}
	seconds = parseSeconds(j.TimeLimit)
	if seconds < 60 || seconds > maxLimit {
		return 0, fmt.Errorf("%q is not a time limit; write at least a minute, such as 90m, 2h or 1h30m, or %s", j.TimeLimit, NoLimit)
	}
	return seconds, nil
}

// MaxHookSeconds is the longest time limit of a prolog or epilog.
const MaxHookSeconds = 600

// HookLimit returns how long a prolog or epilog may take, in seconds.
func (j Job) HookLimit() (seconds int64, err error) {
	limit := cmp.Or(j.HookTimeLimit, DefaultHookTimeLimit)
	seconds = parseSeconds(limit)
	if seconds < 1 || seconds > MaxHookSeconds {
		return 0, fmt.Errorf("%.60q is not a time limit of a hook; write one from 1s to 10m, such as 90s", limit)
	}
	return seconds, nil
}

// parseSeconds reads a time in the form of limitForm; 0 if it has another.
func parseSeconds(limit string) (seconds int64) {
	parts := limitForm().FindStringSubmatch(limit)
	if parts == nil {
		return 0
	}
	for i, unit := range []int64{3600, 60, 1} {
		if part := parts[i+1]; part != "" {
			n, _ := strconv.ParseInt(part[:len(part)-1], 10, 64) // limitForm matches only digits
			seconds += n * unit
		}
	}
	return seconds
}
