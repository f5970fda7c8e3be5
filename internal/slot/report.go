package slot

// Paths of a guard's socket that are not Docker's: the slot's agent reports its progress there.
// The answer is 204, or 200 with a message for the job's log, or 409 with the reason why the
// slot is parked.
const (
	ReadyPath      = "/kbnode/ready"      // the agent is about to start; only root may send this
	RegisteredPath = "/kbnode/registered" // Buildkite accepted the agent
	BeginPath      = "/kbnode/begin"      // a job is about to begin
	EndPath        = "/kbnode/end"        // a job has ended
	// RecordPath is requested when a job's command has ended and before its artifacts are
	// uploaded. The answer is 200 with the content of node.json as the message. What the job
	// left running is ended first, so that it cannot overwrite what is written next.
	RecordPath = "/kbnode/record"
)
