package compare

import (
	"fmt"
	"math"

	"github.com/gpu-mode/kbnode/internal/std/text"
)

// Change returns the difference of times as people say it, with its interval: "-9.8 % (-10.2 to -9.4)".
func (d Difference) Change() string {
	if d.Low == 0 {
		return percent(d.Ratio) + " %"
	}
	return fmt.Sprintf("%s %% (%s to %s)", percent(d.Ratio), percent(d.Low), percent(d.High))
}

// Sentence returns the verdict on the second of two submissions.
func (d Difference) Sentence(names [2]string) string {
	switch d.Verdict {
	case Faster:
		return fmt.Sprintf("%s is faster than %s: it takes %s %% less time (%s to %s)", names[1], names[0], number(1-d.Ratio), number(1-d.High), number(1-d.Low))
	case Slower:
		return fmt.Sprintf("%s is slower than %s: it takes %s %% more time (%s to %s)", names[1], names[0], number(d.Ratio-1), number(d.Low-1), number(d.High-1))
	case Equal:
		return fmt.Sprintf("%s and %s take the same time, within %.0f %%", names[0], names[1], Same*100)
	case Noisy:
		return fmt.Sprintf("too noisy to tell: %s takes %s %% to %s %% of the time of %s", names[1], number(d.Low), number(d.High), names[0])
	}
	return "too few rounds to tell"
}

// maxOdd bounds the implausible times that Conclusion repeats.
const maxOdd = 3

// Conclusion returns the sentence for people, and what they need to know beside it.
func (r *Report) Conclusion(names [2]string) (says string, beside []string) {
	n := len(r.Rounds)
	says = r.Overall.Sentence(names)
	switch r.Overall.Verdict {
	case Withheld:
		return "no verdict: " + text.Line(r.Stopped, 300), nil
	case Implausible:
		says = "no verdict: some times cannot be"
		for _, odd := range r.Odd[:min(len(r.Odd), maxOdd)] {
			beside = append(beside, "implausible: "+text.Line(odd, 500))
		}
	case Noisy:
		if more := r.Overall.RoundsFor(n); more == 0 && r.onNode { // other programs are no one's to end
			beside = append(beside, fmt.Sprintf("with this noise, even %d rounds do not tell %.0f %% apart", MaxRounds, Same*100))
		} else if more > 0 {
			beside = append(beside, fmt.Sprintf("about %d rounds would tell %.0f %% apart: write --rounds %[1]d", more, Same*100))
		} else {
			beside = append(beside, fmt.Sprintf("end other programs: with this noise, even %d rounds do not tell %.0f %% apart", MaxRounds, Same*100))
		}
	}
	if r.Stopped != "" {
		beside = append(beside, fmt.Sprintf("stopped after %d of %d rounds: %s", n, r.Wanted, text.Line(r.Stopped, 300)))
	}
	return says, beside
}

// percent returns a ratio as a signed difference in percent: -9.8.
func percent(ratio float64) string {
	s := number(math.Abs(ratio - 1))
	switch {
	case s == "0.0":
		return s
	case ratio < 1:
		return "-" + s
	}
	return "+" + s
}

// number returns a part in percent: with a digit after the point, or two below one percent.
func number(part float64) string {
	switch p := part * 100; {
	case p >= 1e6:
		return fmt.Sprintf("%.1e", p)
	case p >= 999.5:
		return fmt.Sprintf("%.0f", p)
	case math.Abs(p) < 0.005:
		return "0.0"
	case math.Abs(p) < 1:
		return fmt.Sprintf("%.2f", p)
	default:
		return fmt.Sprintf("%.1f", p)
	}
}
