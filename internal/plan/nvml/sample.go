package nvml

// Sample is the state of a GPU at one moment, a line of `kbnode-nvml sample`. Values that
// the driver does not report are absent.
type Sample struct {
	Clock       *uint32 `json:"sm_clock_mhz,omitempty"`
	Temperature *uint32 `json:"temperature_c,omitempty"`
	Margin      *int32  `json:"margin_c,omitempty"` // distance to slowing down
	Power       *uint32 `json:"power_mw,omitempty"`
	Busy        *uint32 `json:"busy_percent,omitempty"`
	// Reasons is the bit set of GPU.ClockReasons.
	Reasons *uint64 `json:"clock_reasons,omitempty"`
	// Error means that the driver does not answer for this GPU; it is the last line.
	Error string `json:"error,omitempty"`
}

// The settings of a GPU that can be changed.
const (
	SetPersistence = "persistence" // "on" or "off"
	SetClocks      = "clocks"      // of its SMs: "default", "base", or MHz to lock them to
)

// Setting is one change of one GPU.
type Setting struct {
	GPU   string // UUID
	Name  string // SetPersistence or SetClocks
	Value string
}
