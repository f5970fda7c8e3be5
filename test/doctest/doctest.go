// Package doctest reads a page of the documentation as a program: what its reader
// types, in order, and what he sees.
//
// The info string of a block says who runs it. GitHub reads only its first word.
//
//	```sh           typed on the machine; an exit code other than 0 is a fault
//	```sh exit=1    the exit code that it must have
//	```sh again     typed again until it ends so and its output is as the page has it
//	```sh host      make targets, typed where kbnode's source is
//	```yaml job     a pipeline, run as a job of the node
//	```text output  what the block above it prints
//
// There is no other kind, so that no block slips by.
package doctest

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// Kind is who runs a block.
type Kind string

// The kinds of blocks.
const (
	Machine Kind = "sh"
	Host    Kind = "sh host"
	Job     Kind = "yaml job"
)

// Block is one of a page.
type Block struct {
	Kind   Kind
	Line   int // of its fence
	Text   string
	Exit   int  // the code it ends with
	Again  bool // until it ends so and prints Output
	Output *Output
}

// Output is what a page says that a block prints.
type Output struct {
	Line int // of its fence
	Text string
}

// Parse returns the blocks of a page. What is no block of a known kind is an error,
// and so is code that is indented instead of fenced.
func Parse(page string) ([]Block, error) {
	var blocks []Block
	var errs []error
	fault := func(line int, format string, args ...any) {
		errs = append(errs, fmt.Errorf("line %d: "+format, append([]any{line}, args...)...))
	}
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		text := strings.TrimLeft(lines[i], " ")
		indent := len(lines[i]) - len(text)
		fence := text[:len(text)-len(strings.TrimLeft(text, "`"))]
		if len(fence) < 3 {
			// What stands this far in goes on with the list above it, or is code.
			if blank := i == 0 || strings.TrimSpace(lines[i-1]) == ""; indent >= 4 && blank {
				fault(i+1, "code that is only indented; put it between fences that say who runs it")
			}
			continue
		}
		from := i + 1
		var body []string
		for i++; i < len(lines) && strings.TrimSpace(lines[i]) != fence; i++ {
			line := lines[i]
			body = append(body, line[min(indent, len(line)-len(strings.TrimLeft(line, " "))):])
		}
		if i == len(lines) {
			fault(from, "this block has no end")
			break
		}
		b, err := block(strings.TrimPrefix(text, fence))
		b.Line, b.Text = from, strings.Join(body, "\n")+"\n"
		switch {
		case err != nil:
			fault(from, "%w", err)
		case b.Kind != output:
			blocks = append(blocks, b)
		case len(blocks) == 0 || blocks[len(blocks)-1].Kind != Machine || blocks[len(blocks)-1].Output != nil:
			fault(from, "this output has no block above it that is typed on the machine")
		default:
			blocks[len(blocks)-1].Output = &Output{b.Line, b.Text}
		}
	}
	return blocks, errors.Join(errs...)
}

// output is the kind of a block that belongs to the one above it.
const output Kind = "text output"

// block is one with this info string.
func block(info string) (b Block, err error) {
	var words []string
	for word := range strings.FieldsSeq(info) {
		code, exits := strings.CutPrefix(word, "exit=")
		switch {
		case exits:
			if b.Exit, err = strconv.Atoi(code); err != nil {
				return b, fmt.Errorf("%q is no exit code", code)
			}
		case word == "again":
			b.Again = true
		default:
			words = append(words, word)
		}
	}
	b.Kind = Kind(strings.Join(words, " "))
	switch b.Kind {
	case Machine:
		return b, nil
	case Host, Job, output:
		if b.Exit == 0 && !b.Again {
			return b, nil
		}
	}
	return b, fmt.Errorf("nothing runs a block %q; the kinds are sh, sh exit=N, sh again, sh host, yaml job and text output", strings.TrimSpace(info))
}
