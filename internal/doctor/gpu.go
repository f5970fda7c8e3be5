package doctor

var gpuChecks []Check
