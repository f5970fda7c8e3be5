package doctor

var hardwareChecks []Check
