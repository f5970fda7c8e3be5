// Command sbom writes down what a release's programs are made of, in CycloneDX: the
// modules that the compiler wrote into them, and their checksums in go.sum.
package main

import (
	"cmp"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

func main() {
	version := flag.String("version", "", "version of the release")
	date := flag.String("date", "", "date of the release, in RFC 3339 format")
	out := flag.String("out", "", "`FILE` to write")
	flag.Parse()
	if flag.NArg() == 0 || *version == "" || *date == "" || *out == "" {
		fmt.Fprintln(os.Stderr, "usage: sbom --version VERSION --date DATE --out FILE PROGRAM...")
		os.Exit(2)
	}
	if err := write(*out, *version, *date, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// write makes the document of programs: the first is what is released, the others are
// inside of it. The same programs, version and date give the same bytes.
func write(out, version, date string, programs []string) error {
	modules, files := map[string]*debug.Module{}, []cdx.Component{}
	for _, name := range programs {
		text, err := os.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read program: %w", err)
		}
		info, err := buildinfo.ReadFile(name)
		if err != nil {
			return fmt.Errorf("read modules of %s: %w", name, err)
		}
		for _, m := range append(info.Deps, &debug.Module{Path: "std", Version: strings.TrimPrefix(info.GoVersion, "go")}) {
			if m.Replace != nil {
				m = m.Replace
			}
			modules[purl(m)] = m
		}
		files = append(files, cdx.Component{
			Type: cdx.ComponentTypeApplication, BOMRef: filepath.Base(name), Name: filepath.Base(name), Version: version,
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "MIT"}}},
			Hashes:   &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(text))}},
		})
	}
	all := files[1:]
	for _, ref := range slices.Sorted(maps.Keys(modules)) {
		m := modules[ref]
		c := cdx.Component{Type: cdx.ComponentTypeLibrary, BOMRef: ref, PackageURL: ref, Name: m.Path, Version: m.Version}
		if m.Sum != "" {
			c.Properties = &[]cdx.Property{{Name: "go.sum", Value: m.Sum}}
		}
		all = append(all, c)
	}
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{Timestamp: date, Component: &files[0]}
	bom.Components = &all
	f, err := os.Create(out)
	if err != nil {
		return fmt.Errorf("write document: %w", err)
	}
	err = cdx.NewBOMEncoder(f, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(bom, cdx.SpecVersion1_6)
	if err = errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write document: %w", err)
	}
	return nil
}

// purl is a module's name for scanners of vulnerabilities.
func purl(m *debug.Module) string {
	return "pkg:golang/" + m.Path + "@" + cmp.Or(m.Version, "unknown")
}
