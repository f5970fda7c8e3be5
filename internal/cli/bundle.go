package cli

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/cli/term"
	"github.com/gpu-mode/kbnode/internal/node"
	"github.com/gpu-mode/kbnode/internal/node/bundle"
	"github.com/gpu-mode/kbnode/internal/node/image"
	"github.com/gpu-mode/kbnode/internal/plan"
	"github.com/gpu-mode/kbnode/internal/std/text"
)

// bundleReport is the JSON of kbnode bundle; docs/install.md describes it.
type bundleReport struct {
	File        string `json:"file"`
	Fingerprint string `json:"fingerprint"`      // SHA-256 of the manifest, which has those of all else
	SHA256      string `json:"sha256,omitempty"` // of the whole file; only kbnode bundle create prints it
	bundle.Manifest
}

func newBundle(s term.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bundle",
		Short: "Pack kbnode, agent and image for nodes without internet",
	}
	cmd.AddCommand(newBundleCreate(s), newBundleCheck(s))
	return cmd
}

type bundleFlags struct {
	bundle.Options
	asJSON bool
}

func newBundleCreate(s term.Streams) *cobra.Command {
	var f bundleFlags
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make a bundle: kbnode, buildkite-agent and the jobs' image in one file",
		Long: `Make a bundle: kbnode, buildkite-agent and the jobs' image in one file, for nodes
without internet.

It runs on any machine with internet and Docker, such as a laptop, and takes the image
from Docker: pull it first. Copy the bundle to the node, and type there:

    sha256sum kbnode-bundle.tar
    tar -xf kbnode-bundle.tar kbnode
    sudo install -m 755 kbnode /usr/local/bin/kbnode
    sudo kbnode install --bundle kbnode-bundle.tar --queue b200

The first line must print the SHA-256 that create has printed: the programs run as root.
Later, kbnode upgrade and kbnode image update take another --bundle. An archive for
support is something else: kbnode doctor --bundle makes it.`,
		Example: `  kbnode bundle create --image ghcr.io/gpu-mode/kernelbot:latest
  kbnode bundle create --arch arm64 --kbnode ./kbnode-arm64 -o gb200.tar`,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.create(cmd.Context(), s) },
	}
	fl := cmd.Flags()
	fl.StringVar(&f.Image, "image", "", "image to take from Docker (default: image.name of the configuration)")
	fl.StringVar(&f.Arch, "arch", runtime.GOARCH, "architecture of the nodes: amd64 or arm64")
	fl.Lookup("arch").DefValue = "" // the same text on each machine
	fl.Lookup("arch").Usage += " (default: this machine's)"
	fl.StringVar(&f.Kbnode, "kbnode", "", "kbnode's program for --arch, from a release (default: this one)")
	fl.StringVar(&f.AgentVersion, "agent-version", "", "buildkite-agent to fetch (default: "+plan.PinnedAgentVersion+")")
	fl.StringVar(&f.AgentBinary, "agent-binary", "", "buildkite-agent to take, and not fetch")
	fl.StringVarP(&f.Path, "output", "o", "kbnode-bundle.tar", "file to write")
	term.JSONFlag(fl, &f.asJSON, "print JSON", bundleDoc)
	_ = cmd.RegisterFlagCompletionFunc("arch", values(architectures...))
	return cmd
}

var architectures = []string{"amd64", "arm64"}

func (f *bundleFlags) check() error {
	switch {
	case !slices.Contains(architectures, f.Arch):
		return term.Usagef("--arch %q: write amd64 or arm64", text.Line(f.Arch, 60))
	case f.Arch != runtime.GOARCH && f.Kbnode == "":
		return term.Usagef("this kbnode is for %s; name the one for %s, from a release, with --kbnode", runtime.GOARCH, f.Arch)
	case f.AgentVersion != "":
		if err := plan.CheckAgentVersion(f.AgentVersion); err != nil {
			return term.Usage(err)
		}
	}
	if f.Image != "" {
		if _, err := image.ParseName(f.Image); err != nil {
			return term.Usage(err)
		}
	}
	for flag, name := range map[string]string{"--kbnode": f.Kbnode, "--agent-binary": f.AgentBinary} {
		if err := term.CheckFile(flag, name); err != nil {
			return err
		}
	}
	return term.CheckNew("--output", f.Path)
}

func (f *bundleFlags) create(ctx context.Context, s term.Streams) error {
	if err := f.check(); err != nil {
		return err
	}
	p := term.NewProgress(s)
	f.Version, f.Say = Version(), p.Say
	f.Progress = func(written int64) { p.Show(fmt.Sprintf("%s: %s", f.Path, text.Bytes(written)), "") }
	b, err := node.CreateBundle(ctx, f.Options)
	p.End("")
	if err != nil && ctx.Err() != nil {
		return errors.New("interrupted; nothing was left behind")
	}
	if err != nil {
		return err
	}
	return bundleDoc.Print(s, f.asJSON, reportOf(b), func() {
		printBundle(s, b)
		printSteps(s, b.SHA256, f.Path)
	})
}

// printSteps prints what to type on a node. The checksum comes first, by a program that does not come with the bundle.
func printSteps(s term.Streams, sum, path string) {
	term.Printf(s.Out, "  SHA-256          %s\n\nCopy it to the node, and type there; go on if the first line prints this SHA-256:\n", sum)
	for _, line := range []string{
		"sha256sum " + term.Word(path),
		"tar -xf " + term.Word(path) + " kbnode", "sudo install -m 755 kbnode " + node.Binary,
		"sudo kbnode install --bundle " + term.Word(path) + " --queue QUEUE --token-file token.txt",
	} {
		term.Printf(s.Out, "  %s\n", strings.ReplaceAll(line, " ", term.Unbroken))
	}
}

func newBundleCheck(s term.Streams) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check FILE",
		Short: "Check that a bundle is complete and undamaged, and show what it has",
		Long: `Check that a bundle is complete and undamaged, and show what it has. It can be of another
architecture than this machine's. Nothing is installed.

Its programs run as root on a node. If others could write to the file, compare the
fingerprint with the one that kbnode bundle create has printed, but not with the kbnode
that came in it: it could print anything. Before you unpack that, compare the output of
sha256sum with the SHA-256 that create has printed.`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := node.OpenBundle(args[0])
			if err != nil {
				return err
			}
			defer b.Close() //nolint:errcheck // opened for reading
			p := term.NewProgress(s)
			err = b.Check(cmd.Context(), true, func(done, total int64) {
				p.Show(fmt.Sprintf("checked %s of %s", text.Bytes(done), text.Bytes(total)), "")
			})
			p.End("")
			if err != nil {
				return err
			}
			return bundleDoc.Print(s, asJSON, reportOf(b), func() { printBundle(s, b) })
		},
	}
	term.JSONFlag(cmd.Flags(), &asJSON, "print JSON", bundleDoc)
	return cmd
}

func reportOf(b *node.Bundle) bundleReport {
	return bundleReport{b.Path, b.Fingerprint, b.SHA256, b.Manifest}
}

func printBundle(s term.Streams, b *node.Bundle) {
	for _, line := range b.Text() {
		term.Printf(s.Out, "%s\n", line)
	}
}

// openBundle opens the bundle of a flag for this machine; nil if there is none.
func openBundle(path string) (*node.Bundle, func(), error) {
	if path == "" {
		return nil, func() {}, nil
	}
	b, err := node.OpenOwnBundle(path)
	if err != nil {
		return nil, nil, err
	}
	return b, func() { _ = b.Close() }, nil
}

// printBrings prints what a bundle would change.
func printBrings(s term.Streams, path string, lines []string) {
	if path == "" {
		return
	}
	term.Printf(s.Out, "%s brings:\n", path)
	for _, line := range lines {
		term.Printf(s.Out, "  %s\n", line)
	}
}

// bundledImage describes what became of a bundle's image in an installation.
func bundledImage(r image.Result, path string) string {
	if r.Action == image.ActionLater {
		return fmt.Sprintf("The image comes later: %s; sudo kbnode image update --bundle %s waits for it.", r.Reason, term.Word(path))
	}
	return imageResult(r, false)
}
