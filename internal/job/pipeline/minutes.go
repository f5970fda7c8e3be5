package pipeline

import (
	"fmt"
	"strconv"
	"strings"

	"gopkg.in/yaml.v3"
)

// StepMinutes returns the shortest time limit, in minutes, of the steps in a pipeline's configuration that
// evaluate; 0 if it has none, or cannot be read.
func StepMinutes(configuration string) int {
	var steps any
	if CheckExtent(configuration) != nil || yaml.Unmarshal([]byte(configuration), &steps) != nil {
		return 0
	}
	return shortest(steps)
}

// shortest looks through a list of steps, a group of them, a pipeline, or one step.
func shortest(v any) (least int) {
	take := func(n int) {
		if n > 0 && (least == 0 || n < least) {
			least = n
		}
	}
	switch v := v.(type) {
	case []any:
		for _, step := range v {
			take(shortest(step))
		}
	case map[string]any:
		take(shortest(v["steps"]))
		for _, key := range []string{"command", "commands"} {
			if strings.Contains(fmt.Sprint(v[key]), "kbnode runner") {
				n, _ := strconv.Atoi(fmt.Sprint(v["timeout_in_minutes"]))
				take(n)
			}
		}
	}
	return least
}
