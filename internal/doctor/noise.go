package doctor

var noiseChecks []Check
