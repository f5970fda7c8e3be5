package vm

import (
	"testing"
	"time"
)

func TestLimit(t *testing.T) {
	t.Parallel()
	for slow, want := range map[float64]time.Duration{0: time.Minute, 0.5: time.Minute, 1: time.Minute, 2.5: 150 * time.Second} {
		m := &Machine{VM: &VM{slow: slow}}
		if got := m.Limit(time.Minute); got != want {
			t.Errorf("a minute on a machine that takes %v times as long: %v, want %v", slow, got, want)
		}
	}
}
