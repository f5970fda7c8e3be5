package doctor

import "slices"

// All returns all checks in the order in which they are shown. Those for a bare machine are
// in the order in which to fix their findings.
func All() []Check {
	return slices.Concat(
		nodeChecks, gpuChecks, dockerChecks, slotChecks, []Check{containerCheck}, agentChecks,
		buildkiteChecks, imageChecks, hardwareChecks, noiseChecks, systemChecks,
	)
}
