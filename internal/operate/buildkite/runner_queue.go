package buildkite

import "strings"

// RunnerQueue is a queue as kernelbot's launchers and API describe theirs (RunnerQueueStatus in
// libkernelbot/launchers/launcher.py): its keys are theirs, and none is left out.
type RunnerQueue struct {
	Runner    string  `json:"runner"`
	GPU       string  `json:"gpu"`
	Queued    int     `json:"queued_jobs"`
	Running   int     `json:"running_jobs"`
	Available int     `json:"available_runners"` // that take jobs, busy ones too
	Status    string  `json:"status"`            // available or unavailable
	Error     *string `json:"error"`
}

func (q Queue) runnerQueue() *RunnerQueue {
	r := &RunnerQueue{
		Runner: "Buildkite", GPU: strings.ToUpper(q.Name), Status: "available",
		Queued: q.Waiting.Jobs, Running: q.Count(Busy, Draining), Available: q.Count(Idle, Busy),
	}
	if r.Available == 0 {
		none := "no agent takes jobs of queue " + q.Name
		r.Status, r.Error = "unavailable", &none
	}
	return r
}
