package doctor

import "slices"

// All are all checks, in the order in which they are shown. Those of a bare machine
// stand in the order in which what they find is to be mended.
func All() []Check {
	return slices.Concat(
		nodeChecks, gpuChecks, dockerChecks, slotChecks, []Check{containerCheck}, agentChecks,
		buildkiteChecks, imageChecks, hardwareChecks, noiseChecks, systemChecks,
	)
}
