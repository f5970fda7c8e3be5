package reconcile

// OnStep makes a host call f before each change of the machine. An error of f is returned
// as if the change had failed.
func (h *Host) OnStep(f func(words string) error) { h.step = f }

// LookAtSockets makes a host check the slots' sockets below its root.
func (h *Host) LookAtSockets() { h.sockets = true }
