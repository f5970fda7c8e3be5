package text

import "testing"

func TestBytes(t *testing.T) {
	t.Parallel()
	for n, want := range map[int64]string{
		-1: "-", 0: "-", 2048: "2 KiB", 512 << 20: "512 MiB", 3 << 29: "1.5 GiB", 180 << 30: "180 GiB", 2 << 40: "2048 GiB",
	} {
		if got := Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func TestEdits(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"b200", "B200", 0}, {"b20", "b200", 1}, {"h100", "b200", 2}, {"", "abc", 3}} {
		if got := Edits(c.a, c.b); got != c.want {
			t.Errorf("Edits(%q, %q) = %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
