package doctor

var slotChecks []Check
