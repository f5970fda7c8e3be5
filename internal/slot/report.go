package slot

// Where a slot's agent reports its progress to the slot's service. The answer is 204, or 409 with the
// reason why the slot is parked.
const (
	ReadyPath      = "/kbnode/ready"      // the agent is about to start; only root may send this
	RegisteredPath = "/kbnode/registered" // Buildkite accepted the agent
)
