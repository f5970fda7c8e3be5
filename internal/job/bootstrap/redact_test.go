package bootstrap

import (
	"bytes"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gpu-mode/kbnode/test/must"
)

func redact(secrets []string, writes ...string) string {
	var out bytes.Buffer
	r := NewRedactor(&out, secrets)
	for _, w := range writes {
		_, _ = r.Write([]byte(w))
	}
	r.Close()
	return out.String()
}

// TestRedactor finds secrets however a log is cut.
func TestRedactor(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		secrets   []string
		log, want string
	}{
		{nil, "plain", "plain"},
		{[]string{"secret1"}, "a secret1 b secret1", "a [REDACTED] b [REDACTED]"},
		{[]string{"secret1"}, "a secret", "a secret"},
		{[]string{"short", ""}, "short", "short"},
		{[]string{"abcabcabd"}, "abcabcabcabd", "abc[REDACTED]"},
		{[]string{"abcdef", "defghi"}, "abcdefghi", "[REDACTED]"},
		{[]string{"abcdef", "abcdefgh"}, "abcdefgh abcdefg", "[REDACTED] [REDACTED]g"},
		{[]string{"aaaaaa"}, "aaaaaaaaaaaaab", "[REDACTED]b"},
		{[]string{"abcdef"}, "abcdefabcdef", "[REDACTED][REDACTED]"},
		{[]string{"line 1\nline 2\n"}, "x line 1\r\nline 2\r\n", "x [REDACTED]\r\n"},
		{[]string{"  padded  "}, "padded", "[REDACTED]"},
	} {
		// Overlaps of the longest variant and the trimmed one are one secret.
		want := strings.ReplaceAll(row.want, "[REDACTED]\r\n", "[REDACTED]")
		for cut := range len(row.log) + 1 {
			must.Equal(t, want, redact(row.secrets, row.log[:cut], row.log[cut:]))
		}
		must.Equal(t, want, redact(row.secrets, strings.Split(row.log, "")...))
	}
}

// TestRedactorHoldsBackLittle writes at once what cannot become a secret.
func TestRedactorHoldsBackLittle(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := NewRedactor(&out, []string{"secret1"})
	for _, row := range []struct{ write, want string }{{"password: ", "password: "}, {"sec", ""}, {"tor\n", "sector\n"}, {"secre", ""}, {"t1", "[REDACTED]"}} {
		out.Reset()
		if _, err := r.Write([]byte(row.write)); err != nil || out.String() != row.want {
			t.Errorf("after %q: %q, %v", row.write, out.String(), err)
		}
	}
}

// TestRedactorIsComplete cuts random logs at random, and compares with a whole one.
func TestRedactorIsComplete(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	text := func(n int) string {
		b := make([]byte, n)
		for i := range b {
			b[i] = "ab"[random.IntN(2)]
		}
		return string(b)
	}
	for range 2000 {
		secrets := []string{text(6), text(6 + random.IntN(4)), text(8)}
		log := text(random.IntN(80))
		var writes []string
		for rest := log; rest != ""; {
			n := 1 + random.IntN(len(rest))
			writes, rest = append(writes, rest[:n]), rest[n:]
		}
		got := redact(secrets, writes...)
		if whole := redact(secrets, log); got != whole {
			t.Fatalf("%q without %q is %q in pieces %q, and whole %q", log, secrets, got, writes, whole)
		}
		if want := plainly(secrets, log); got != want {
			t.Fatalf("%q without %q is %q, want %q", log, secrets, got, want)
		}
		for _, s := range secrets {
			if strings.Contains(got, s) {
				t.Fatalf("%q has the secret %q of %q", got, s, log)
			}
		}
	}
}

// plainly is what a log is without its secrets, of which those that overlap are one.
func plainly(secrets []string, log string) (text string) {
	end := 0 // of what is written
	for i := range len(log) {
		length := 0
		for _, s := range secrets {
			if strings.HasPrefix(log[i:], s) {
				length = max(length, len(s))
			}
		}
		switch {
		case length > 0 && i >= end:
			text += redacted
		case i >= end:
			text += log[i : i+1]
			end = i + 1
		}
		if length > 0 {
			end = max(end, i+length)
		}
	}
	return text
}

// TestRedactorOutlivesItsSecrets takes a build's secrets that are alike for long, or very many, and a log that begins all
// of them, and goes on. The job has ended long before a log that takes seconds for each byte.
func TestRedactorOutlivesItsSecrets(t *testing.T) {
	t.Parallel()
	const long = 131_000
	alike, many := []string{strings.Repeat("a", long)}, []string{}
	for i := range 14 {
		alike = append(alike, strings.Repeat("a", long/2+i)+"b"+strings.Repeat("c", long/2-i-1))
	}
	for i := range 4096 {
		many = append(many, strings.Repeat("a", 480)+strconv.Itoa(10_000+i))
	}
	for _, secrets := range [][]string{alike, many} {
		var out bytes.Buffer
		r := NewRedactor(&out, secrets)
		began := time.Now()
		for i := range 2000 {
			_, _ = r.Write([]byte(strings.Repeat("a", max(1, 32<<10*(1-i/8)))))
			if time.Since(began) > must.Patience {
				t.Fatalf("%d writes took %s", i, time.Since(began))
			}
		}
		r.Close()
		if want := 8*32<<10 + 2000 - 8; len(secrets) > 100 && out.Len() != want {
			t.Errorf("%d bytes of log, want %d", out.Len(), want)
		}
	}
}

// TestHideGoesOn keeps hidden what is hidden when there are more secrets.
func TestHideGoesOn(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := NewRedactor(&out, []string{"abcdef", "defghijkl"})
	_, _ = r.Write([]byte("abcdefghi"))
	r.Hide([]string{"ghixyz"})
	_, _ = r.Write([]byte("xyz abcdef"))
	r.Close()
	must.Equal(t, "[REDACTED][REDACTED] [REDACTED]", out.String())
}

// TestRedactorAtOnce keeps all of two writers.
func TestRedactorAtOnce(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	r := NewRedactor(&out, []string{"secret1"})
	var group sync.WaitGroup
	for range 2 {
		group.Go(func() {
			for range 1000 {
				_, _ = r.Write([]byte("a secret\n"))
			}
		})
	}
	group.Wait()
	r.Close()
	must.Equal(t, 2000, strings.Count(out.String(), "a secret\n"))
}

// TestRedactPrefix hides a secret whose beginning is one, too, in any order.
func TestRedactPrefix(t *testing.T) {
	t.Parallel()
	for _, order := range [][]string{{"secret-long", "secret"}, {"secret", "secret-long"}} {
		var log strings.Builder
		r := NewRedactor(&log, order[:1])
		r.Hide(order[1:])
		_, err := io.WriteString(r, "a secret-long, a secret.")
		must.Do(t, err)
		r.Close()
		must.Equal(t, "a [REDACTED], a [REDACTED].", log.String())
	}
}
