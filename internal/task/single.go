package task

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/payload"
)

func (d *definition) timeout(at map[string]pair, key string, to *time.Duration) payload.Value {
	v, line := payload.Value(defaultTimeout), 0
	if m, ok := at[key]; ok {
		v, line = d.value(m.value, 1), m.line
	}
	seconds := 0.0
	switch v := v.(type) {
	case payload.Int:
		seconds, _ = strconv.ParseFloat(string(v), 64) // infinity if it is too large
	case payload.Float:
		seconds = float64(v)
	}
	if !(seconds > 0 && seconds <= maxTimeout) {
		d.Add(line, "%s is %s; write a number of seconds above 0 and up to %d, or leave the key out for %s", key, shown(v), maxTimeout, defaultTimeout)
	}
	*to = time.Duration(math.Ceil(seconds * float64(time.Second)))
	return v
}

func (d *definition) seed(at map[string]pair) payload.Value {
	m, ok := at["seed"]
	if !ok {
		return nil
	}
	v := d.value(m.value, 1)
	if _, ok := v.(payload.Int); !ok && v != nil {
		d.Add(m.line, "seed is %s; write a whole number, or leave the key out", shown(v))
	}
	return v
}

func (d *definition) flag(at map[string]pair, key string) bool {
	m, ok := at[key]
	if !ok {
		return false
	}
	v := d.value(m.value, 1)
	on, ok := v.(bool)
	if !ok {
		d.Add(m.line, "%s is %s; write true or false", key, shown(v))
	}
	return on
}

func (d *definition) choice(at map[string]pair, key, otherwise string, words ...string) string {
	m, ok := at[key]
	if !ok {
		return otherwise
	}
	v := d.value(m.value, 1)
	if s, ok := v.(string); ok && slices.Contains(words, s) {
		return s
	}
	d.Add(m.line, "%s is %s; write %s", key, shown(v), strings.Join(words, " or "))
	return ""
}
