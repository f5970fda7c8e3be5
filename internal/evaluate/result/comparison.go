package result

import "fmt"

// ModeCompare is the mode of a payload with two submissions. Runners that compare nothing refuse it.
const ModeCompare = "compare"

// Bounds on the rounds of a comparison.
const (
	MinRounds = 3
	MaxRounds = 100
)

// Turn is an evaluation in a comparison: of submission 0 or 1, in a round or, in round 0, its tests.
type Turn struct{ Side, Round int }

// Turns returns the evaluations of a comparison, in order. Without tests, there is no round 0.
func Turns(rounds int, tested bool) (all []Turn) {
	if tested {
		all = []Turn{{0, 0}, {1, 0}}
	}
	for n := 1; n <= rounds; n++ {
		all = append(all, Turn{First(n), n}, Turn{1 - First(n), n})
	}
	return all
}

// First returns which submission a round begins with. It alternates, so that neither gains from its place.
func First(round int) int { return (round + 1) % 2 }

// Name returns the evaluation's name in Runs: test.A, benchmark.B.3. No other mode has such names, so that no reader takes
// one for a submission's score.
func (t Turn) Name() string {
	if t.Round == 0 {
		return fmt.Sprintf("test.%c", 'A'+t.Side)
	}
	return fmt.Sprintf("benchmark.%c.%d", 'A'+t.Side, t.Round)
}
