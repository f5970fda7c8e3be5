package main

import (
	_ "embed"
	"encoding/json"
)

// The pipeline and the submission that are used when none is given.
var (
	//go:embed sample/kernelbot.yml
	samplePipeline string
	//go:embed sample/eval.py
	sampleEval string
	//go:embed sample/submission.py
	sampleSubmission string
)

// sampleConfig is a submission in kernelbot's form that needs only Python.
func sampleConfig() ([]byte, error) {
	return json.Marshal(map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py",
		"sources": map[string]string{"eval.py": sampleEval, "submission.py": sampleSubmission},
		"tests":   []any{map[string]int{"size": 16}, map[string]int{"size": 1024}},
		"seed":    nil, "ranking_by": "last", "test_timeout": 60, "multi_gpu": false,
	})
}
