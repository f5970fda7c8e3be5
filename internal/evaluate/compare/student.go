package compare

import "math"

// quantile returns the number that Student's t with df degrees of freedom, 1 or more, exceeds in absolute
// value with probability 1 - level.
func quantile(df int, level float64) float64 {
	low, high := 0.0, 1.0
	for within(high, df) < level && high < math.MaxFloat64/2 {
		low, high = high, 2*high
	}
	for range 200 {
		mid := (low + high) / 2
		if within(mid, df) < level {
			low = mid
		} else {
			high = mid
		}
	}
	return high
}

// within returns the probability of -t to t: A(t|df) of Abramowitz and Stegun, Handbook of Mathematical
// Functions, 26.7.3 for odd and 26.7.4 for even degrees of freedom.
func within(t float64, df int) float64 {
	angle := math.Atan(t / math.Sqrt(float64(df)))
	sin, cos := math.Sincos(angle)
	if df == 1 {
		return 2 * angle / math.Pi
	}
	odd := df % 2
	term, sum := 1.0, 1.0
	if odd == 1 {
		term, sum = cos, cos
	}
	for i := 2 + odd; i < df; i += 2 {
		term *= cos * cos * float64(i-1) / float64(i)
		sum += term
	}
	if odd == 1 {
		return 2 / math.Pi * (angle + sin*sum)
	}
	return sin * sum
}
