// Command echo prints its arguments and environment, and what package environ reads.
package main

import (
	"encoding/json"
	"os"

	"github.com/gpu-mode/kbnode/internal/job/environ"
)

func main() {
	read, err := environ.Read()
	if err != nil {
		panic(err)
	}
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{"args": os.Args[1:], "env": os.Environ(), "read": read})
}
