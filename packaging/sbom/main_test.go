package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestWrite reads this test itself, a Go program with modules.
func TestWrite(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	must.Do(t, err)
	out := filepath.Join(t.TempDir(), "sbom.json")
	var texts []string
	for range 2 {
		must.Do(t, write(out, "1.2.3", "2026-01-02T03:04:05Z", []string{self, self}))
		texts = append(texts, must.Read(t, out))
	}
	must.Equal(t, texts[1], texts[0])
	var doc struct {
		BOMFormat string
		Metadata  struct {
			Timestamp string
			Component struct {
				Version string
				Hashes  []struct{ Content string }
			}
		}
		Components []struct{ Name, Version, Purl string }
	}
	must.Do(t, json.Unmarshal([]byte(texts[0]), &doc))
	if c := doc.Metadata.Component; doc.BOMFormat != "CycloneDX" || doc.Metadata.Timestamp != "2026-01-02T03:04:05Z" || c.Version != "1.2.3" || len(c.Hashes) != 1 || len(c.Hashes[0].Content) != 64 {
		t.Errorf("document of %s", texts[0])
	}
	count := map[string]int{}
	for _, c := range doc.Components {
		count[c.Name]++
		if c.Purl != "" && (c.Version == "" || c.Purl != "pkg:golang/"+c.Name+"@"+c.Version) {
			t.Errorf("component %+v", c)
		}
	}
	if count["std"] != 1 || count["github.com/CycloneDX/cyclonedx-go"] != 1 || count[filepath.Base(self)] != 1 {
		t.Errorf("components %v", count)
	}
	plain := t.TempDir()
	must.Write(t, plain, "plain", "#!/bin/sh\n")
	must.Err(t, write(out, "1.2.3", "2026-01-02T03:04:05Z", []string{filepath.Join(plain, "plain")}), "read modules of")
}
