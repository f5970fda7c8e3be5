package operator

import (
	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/evaluate/arena"
	"github.com/gpu-mode/kbnode/internal/evaluate/compare"
	"github.com/gpu-mode/kbnode/internal/operate/buildkite"
	"github.com/gpu-mode/kbnode/internal/operate/e2e"
	"github.com/gpu-mode/kbnode/internal/operate/submit"
)

// What the commands of an operator print with --json.
var (
	attacksDoc  = term.Document[attackList]{Name: "cheats-list", Schema: 1}
	cheatsDoc   = term.Document[*arena.Report]{Name: "cheats", Schema: arena.Schema}
	compareDoc  = term.Document[*compare.Report]{Name: "compare", Schema: compare.Schema}
	e2eDoc      = term.Document[*e2e.Report]{Name: "e2e", Schema: e2e.Schema}
	queueDoc    = term.Document[buildkite.QueueReport]{Name: "queue", Schema: 1}
	requestsDoc = term.Document[requestList]{Name: "requests", Schema: 1}
	submitDoc   = term.Document[submit.Outcome]{Name: "submit", Schema: 1}
)

// Documents returns what commands of an operator print with --json.
func Documents() []term.Described {
	return []term.Described{attacksDoc, cheatsDoc, compareDoc, e2eDoc, queueDoc, requestsDoc, submitDoc}
}

// requestList is the JSON of --dry-run.
type requestList struct {
	Requests []request `json:"requests"`
}

// request is one that would be sent to Buildkite's REST API.
type request struct {
	Method string             `json:"method"`
	URL    string             `json:"url"`
	Body   buildkite.NewBuild `json:"body"` // as Buildkite's documentation describes it
}

// attackList is the JSON of kbnode e2e cheats --list.
type attackList struct {
	Attacks []arena.Attack `json:"attacks"` // by kind, then by name
}
