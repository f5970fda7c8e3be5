package doctor

var systemChecks []Check
