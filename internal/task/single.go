package task

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpu-mode/kbnode/internal/payload"
)

// single returns the value of a key that may be left out, and refuses one that does not fit.
func (d *definition) single(at map[string]pair, key string, otherwise payload.Value, fits func(payload.Value) bool, want string) payload.Value {
	m, ok := at[key]
	if !ok {
		return otherwise
	}
	v := d.value(m.value)
	if !fits(v) {
		d.Add(m.line, "%s is %s; write %s", key, shown(v), want)
	}
	return v
}

func (d *definition) timeout(at map[string]pair, key string, to *time.Duration) payload.Value {
	want := fmt.Sprintf("a number of seconds above 0 and up to %d, or leave the key out for %s", maxTimeout, defaultTimeout)
	v := d.single(at, key, defaultTimeout, func(v payload.Value) bool { return seconds(v) > 0 && seconds(v) <= maxTimeout }, want)
	*to = time.Duration(math.Ceil(seconds(v) * float64(time.Second)))
	return v
}

// seconds returns the value of a number, 0 for what is none.
func seconds(v payload.Value) (n float64) {
	switch v := v.(type) {
	case payload.Int:
		n, _ = strconv.ParseFloat(string(v), 64) // infinity if it is too large
	case payload.Float:
		n = float64(v)
	}
	return n
}

func (d *definition) seed(at map[string]pair) payload.Value {
	return d.single(at, "seed", nil, func(v payload.Value) bool { _, ok := v.(payload.Int); return ok || v == nil }, "a whole number, or leave the key out")
}

func (d *definition) flag(at map[string]pair, key string) bool {
	on, _ := d.single(at, key, false, func(v payload.Value) bool { _, ok := v.(bool); return ok }, "true or false").(bool)
	return on
}

func (d *definition) choice(at map[string]pair, key, otherwise string, words ...string) string {
	fits := func(v payload.Value) bool { s, ok := v.(string); return ok && slices.Contains(words, s) }
	word, _ := d.single(at, key, otherwise, fits, strings.Join(words, " or ")).(string)
	if !slices.Contains(words, word) {
		return ""
	}
	return word
}
