package doctor

var agentChecks []Check
