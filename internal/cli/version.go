package cli

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// The linker sets version, commit and date (Makefile).
var version, commit, date string

type versionInfo struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Date    string `json:"date"`
	Go      string `json:"go"`
	Arch    string `json:"arch"`
}

// Version returns kbnode's version: "1.2.3", or "0.0.0-dev" for a build without one.
func Version() string { return cmp.Or(version, "0.0.0-dev") }

func readVersion() versionInfo {
	v := versionInfo{Version: Version(), Commit: commit, Date: date, Go: runtime.Version(), Arch: runtime.GOARCH}
	if info, ok := debug.ReadBuildInfo(); ok && v.Commit == "" {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				v.Commit = s.Value
			}
		}
	}
	return v
}

func (v versionInfo) String() string {
	return fmt.Sprintf("kbnode %s (%s, %s)", v.Version, cmp.Or(v.Commit, "unknown commit"), v.Arch)
}

func newVersion(s Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version of kbnode",
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			return s.print(asJSON, v, func() { printf(s.Out, "%s\n", v) })
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}
