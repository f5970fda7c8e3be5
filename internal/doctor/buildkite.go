package doctor

var buildkiteChecks []Check
