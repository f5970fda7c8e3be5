package doctor

var dockerChecks []Check
