package nvml

// Hung is a GPU for which the driver does not answer.
type Hung struct {
	Index int    `json:"index"`
	PCI   string `json:"pci,omitempty"` // "" if not even that is known
}

// Line is what the probe prints about a GPU when it reads all: that it begins, again as soon as it knows the address, and
// at last what it read. A probe that hangs has begun with the GPU that it hangs on.
type Line struct {
	Begun *Hung `json:"begun,omitempty"`
	GPU   *GPU  `json:"gpu,omitempty"`
}
