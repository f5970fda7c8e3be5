// Package zzglob stands in for drjosh.dev/zzglob, which cannot be downloaded everywhere. It has
// what buildkite-agent uses of it. A pattern means what doublestar means by it: *, **, ?, [a-z]
// and {a,b}.
package zzglob

import (
	"context"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
)

// Pattern is a parsed pattern.
type Pattern struct{ text string }

// ParseOption and GlobOption are options of Parse and of Glob.
type (
	ParseOption func(*bool)
	GlobOption  func(*globOptions)
)

type globOptions struct{ follow, intermediate bool }

// ExpandTilde sets whether a leading ~ is the home directory; it is unless this says otherwise.
func ExpandTilde(on bool) ParseOption { return func(tilde *bool) { *tilde = on } }

// TraverseSymlinks sets whether links to directories are followed.
func TraverseSymlinks(on bool) GlobOption { return func(o *globOptions) { o.follow = on } }

// WalkIntermediateDirs sets whether the directory that a pattern begins with is reported too.
func WalkIntermediateDirs(on bool) GlobOption { return func(o *globOptions) { o.intermediate = on } }

// Parse parses a pattern.
func Parse(pattern string, opts ...ParseOption) (*Pattern, error) {
	tilde := true
	for _, o := range opts {
		o(&tilde)
	}
	if rest, ok := strings.CutPrefix(pattern, "~/"); ok && tilde {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, err
		}
		pattern = filepath.Join(home, rest)
	}
	if !doublestar.ValidatePattern(pattern) {
		return nil, doublestar.ErrBadPattern
	}
	return &Pattern{path.Clean(pattern)}, nil
}

// Match reports whether a path matches.
func (p *Pattern) Match(name string) bool {
	ok, err := doublestar.Match(p.text, name)
	return ok && err == nil
}

// Glob calls walk for what matches. A pattern without a file calls nothing, except that a path
// without * and the like is reported as fs.WalkDir reports a root that does not exist.
func (p *Pattern) Glob(walk fs.WalkDirFunc, opts ...GlobOption) error {
	var o globOptions
	for _, opt := range opts {
		opt(&o)
	}
	base, rest := doublestar.SplitPattern(p.text)
	if !strings.ContainsAny(rest, `*?[{\`) {
		info, err := os.Lstat(p.text)
		if err != nil {
			return walk(p.text, nil, err)
		}
		return walk(p.text, fs.FileInfoToDirEntry(info), nil)
	}
	if o.intermediate {
		if _, err := os.ReadDir(base); err != nil {
			return walk(base, nil, err)
		}
	}
	var options []doublestar.GlobOption
	if !o.follow {
		options = append(options, doublestar.WithNoFollow())
	}
	err := doublestar.GlobWalk(os.DirFS(base), rest, func(name string, d fs.DirEntry) error {
		return walk(filepath.Join(base, name), d, nil)
	}, options...)
	return err
}

// MultiGlob calls walk for what matches any of the patterns.
func MultiGlob(ctx context.Context, patterns []*Pattern, walk fs.WalkDirFunc, opts ...GlobOption) error {
	for _, p := range patterns {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := p.Glob(walk, opts...); err != nil {
			return err
		}
	}
	return nil
}
