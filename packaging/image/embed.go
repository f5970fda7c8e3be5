// Package image holds the Dockerfiles of the evaluation images, as data.
package image

import (
	"embed"
	"slices"
)

// Files are all the Dockerfiles, VARIANT.Dockerfile.
//
//go:embed *.Dockerfile
var Files embed.FS

// Variants are the images that there are.
var Variants = []string{"cpu", "cuda", "rocm"}

// Dockerfile is a variant's, which needs no other file; "" where there is no such
// variant.
func Dockerfile(variant string) string {
	if !slices.Contains(Variants, variant) {
		return ""
	}
	text, err := Files.ReadFile(variant + ".Dockerfile")
	if err != nil {
		panic(err) // it is embedded
	}
	return string(text)
}
