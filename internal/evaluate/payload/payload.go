// Package payload packs a submission for transport to a job and unpacks it within
// limits. It knows Python's JSON, and of the keys only those that mean nothing.
package payload

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a payload.
const (
	maxEncoded = 32 << 20 // bytes of base64 text
	maxJSON    = 16 << 20 // bytes of decompressed JSON
	maxDepth   = 1000     // nested lists and objects, as in Python
	maxValues  = 1 << 20  // in the whole document
)

// Encode returns base64(zlib(doc)), the form of a payload in an environment variable or
// a file.
func Encode(doc []byte) string {
	var buf bytes.Buffer
	w, _ := zlib.NewWriterLevel(&buf, zlib.BestCompression) // the level is valid
	_, _ = w.Write(doc)                                     // to memory
	_ = w.Close()
	return base64.StdEncoding.EncodeToString(buf.Bytes())
}

// Decode unpacks a payload to its JSON object. Like Python's decoder, it skips
// characters outside the base64 alphabet and ignores bytes after the zlib stream.
func Decode(text string) (*Object, error) {
	doc, err := Inflate(text)
	if err != nil {
		return nil, err
	}
	return ParseObject(doc)
}

// Inflate decodes base64 and zlib and returns the JSON text, which is valid UTF-8 of at
// most 16 MiB.
func Inflate(text string) (string, error) {
	if len(text) > maxEncoded {
		return "", fmt.Errorf("the payload is over %d bytes of base64 text; send a smaller submission", maxEncoded)
	}
	packed, err := decodeBase64(text)
	var doc string
	if err == nil {
		doc, err = inflate(packed)
	}
	if err != nil {
		switch plain := strings.TrimLeft(text, "\ufeff \t\r\n"); {
		case plain == "":
			err = errors.New("the payload is empty; send base64 of zlib of JSON")
		case plain[0] == '{':
			err = errors.New("the payload is JSON text; encode it with kbnode payload encode, or give it to kbnode runner with --config")
		case plain[0] == '[':
			err = errors.New("the payload is a list; write an object with lang, mode and sources")
		}
		return "", err
	}
	if !utf8.ValidString(doc) {
		return "", errors.New("the payload's JSON is not UTF-8; encode it as UTF-8")
	}
	return doc, nil
}

func inflate(packed []byte) (string, error) {
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b}) {
		return "", errors.New("the payload is gzip; compress it with zlib instead")
	}
	z, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return "", errors.New("the payload is not a zlib stream; send base64 of zlib of JSON")
	}
	var doc strings.Builder
	n, err := io.Copy(&doc, io.LimitReader(z, maxJSON+1))
	if err != nil {
		return "", fmt.Errorf("the payload's zlib stream is damaged (%w); send it whole", err)
	}
	if n > maxJSON {
		return "", fmt.Errorf("the payload unpacks to more than %d bytes of JSON; send a smaller submission", maxJSON)
	}
	return doc.String(), nil
}

// decodeBase64 skips foreign characters, as CPython's default does. Padding ends the data.
func decodeBase64(text string) ([]byte, error) {
	text, _, padded := strings.Cut(text, "=")
	foreign := false // more than line breaks: it is another text
	text = strings.Map(func(r rune) rune {
		if r == '+' || r == '/' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
			return r
		}
		foreign = foreign || !unicode.IsSpace(r)
		return -1
	}, text)
	if !padded && len(text)%4 > 1 && !foreign {
		return nil, errors.New("the payload is not base64: its padding is missing; it may have been cut")
	}
	packed, err := base64.RawStdEncoding.DecodeString(text)
	if err != nil || !padded && len(text)%4 > 1 {
		return nil, errors.New("the payload is not base64; send base64 of zlib of JSON")
	}
	return packed, nil
}
