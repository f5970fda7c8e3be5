package doctor

var imageChecks []Check
