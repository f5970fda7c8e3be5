package witness

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/gpu-mode/kbnode/internal/evaluate/result"
	"github.com/gpu-mode/kbnode/internal/std/text"
	"github.com/gpu-mode/kbnode/internal/std/tree"
)

// File is how findings come from the runner, in a container, to the node: a file at the top of the job's directory,
// beside result.json, and written like it when no process of the submission is left. There is none without findings.
const File = ".kbnode-implausible.json"

// maxBytes bounds the file; MaxFindings of them take less, also if each character is escaped.
const maxBytes = 128 << 10

// Encode returns the content of File.
func Encode(found []Finding) ([]byte, error) { return json.Marshal(found) }

// Take reads File in the checkout of a job that has ended, and removes it. status is the exit status of the job's
// command: the file is the runner's own only if the runner ended by itself, with 0 or 1. Otherwise a submission may
// have written it, and there is no result either.
func Take(checkout, status string) (found []Finding, err error) {
	root, err := os.OpenRoot(checkout)
	if err != nil {
		return nil, err
	}
	defer func() { _ = root.Close() }()
	var body []byte
	f, err := result.OpenFile(root, File)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		body, err = io.ReadAll(io.LimitReader(f, maxBytes+1))
		_ = f.Close() // opened for reading
	}
	if err == nil && len(body) > maxBytes {
		err = fmt.Errorf("it has more than %d bytes", maxBytes)
	}
	if status != "0" && status != "1" {
		body, err = nil, nil
	}
	if err == nil && body != nil {
		err = json.Unmarshal(body, &found)
	}
	if err != nil {
		err = fmt.Errorf("read %s: %w", File, err)
	}
	if rerr := tree.Remove(root, File); rerr != nil {
		err = errors.Join(err, fmt.Errorf("remove %s: %w", File, rerr))
	}
	return Clean(found), err
}

// Clean bounds findings that anyone may have written, and makes their texts safe to show.
func Clean(found []Finding) []Finding {
	found = found[:min(len(found), MaxFindings)]
	for i, f := range found {
		found[i] = Finding{text.Line(f.Evaluation, maxName), text.Line(f.Case, maxName), text.Line(f.Reason, maxReason)}
	}
	return found
}
