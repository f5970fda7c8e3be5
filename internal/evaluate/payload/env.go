package payload

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Names of the environment variables that hold a payload. Numbered ones
// (KERNELBOT_PAYLOAD_0, _1, …) are pieces of one text, because Linux limits one
// environment string to 128 KiB.
const (
	Var       = "KERNELBOT_PAYLOAD"
	OldVar    = "SUBMISSION_PAYLOAD"
	piecePref = Var + "_"
)

// pieceSize keeps one variable, including its name, well under Linux's limit of 131 072
// bytes for an environment string.
const pieceSize = 100_000

// maxPieces bounds how far FromEnv counts. execve's own limit for the whole environment
// is 6 MiB at most.
const maxPieces = 100

// IsVar reports whether an environment variable holds (a piece of) a payload, which
// must not reach the submission.
func IsVar(name string) bool {
	if name == Var || name == OldVar {
		return true
	}
	digits, ok := strings.CutPrefix(name, piecePref)
	return ok && digits != "" && strings.Trim(digits, "0123456789") == ""
}

// FromEnv returns the encoded payload, "" if there is none. It ignores variables without a value.
func FromEnv(env []string) (string, error) {
	vars := map[string]string{}
	for _, kv := range env {
		if k, v, ok := strings.Cut(kv, "="); ok && v != "" && IsVar(k) {
			vars[k] = v
		}
	}
	for _, k := range []string{Var, OldVar} {
		if v, ok := vars[k]; ok {
			return v, nil
		}
	}
	if len(vars) > maxPieces {
		return "", fmt.Errorf("the payload is in more than %d pieces; send fewer and larger ones", maxPieces)
	}
	var b strings.Builder
	for i := range len(vars) {
		k := piecePref + strconv.Itoa(i)
		v, ok := vars[k]
		if !ok {
			return "", fmt.Errorf("%s is not set although %d pieces of the payload are; number them from 0 without a gap", k, len(vars))
		}
		b.WriteString(v)
	}
	return b.String(), nil
}

// Environ returns an encoded payload as environment strings (NAME=VALUE): one variable
// if it fits, numbered pieces otherwise.
func Environ(text string) []string {
	if len(text) <= pieceSize {
		return []string{Var + "=" + text}
	}
	var env []string
	for i, piece := range slices.Collect(slices.Chunk([]byte(text), pieceSize)) {
		env = append(env, piecePref+strconv.Itoa(i)+"="+string(piece))
	}
	return env
}

// Read reads an encoded payload from a file or standard input.
func Read(r io.Reader) (string, error) {
	// One byte over the limit is enough for Inflate to refuse it.
	return read(r, maxEncoded)
}

// ReadJSON reads a payload that is not encoded: UTF-8 of at most 16 MiB, without the byte order mark
// that editors on Windows put first.
func ReadJSON(r io.Reader) (string, error) {
	text, err := read(r, maxJSON)
	switch {
	case err != nil:
		return "", err
	case len(text) > maxJSON:
		return "", fmt.Errorf("the payload is over %d bytes of JSON; send a smaller submission", maxJSON)
	case !utf8.ValidString(text):
		return "", errors.New("the payload's JSON is not UTF-8; encode it as UTF-8")
	}
	return strings.TrimPrefix(text, "\ufeff"), nil
}

// read reads up to one byte more than a limit.
func read(r io.Reader, most int64) (string, error) {
	b, err := io.ReadAll(io.LimitReader(r, most+1))
	if err != nil {
		return "", fmt.Errorf("read payload: %w", err)
	}
	return string(b), nil
}
