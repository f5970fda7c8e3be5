// Package payload packs a submission for transport to a job and unpacks it within
// limits. It knows Python's JSON, not what the keys mean.
package payload

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Limits bound what Decode accepts. A zero field means the default.
type Limits struct {
	Encoded int // bytes of base64 text; default 32 MiB
	JSON    int // bytes of decompressed JSON; default 16 MiB
	Depth   int // nested lists and objects; default 1000, as in Python
	Values  int // values in the whole document; default 1 048 576
}

func (l Limits) orDefault() Limits {
	def := func(v *int, d int) {
		if *v <= 0 {
			*v = d
		}
	}
	def(&l.Encoded, 32<<20)
	def(&l.JSON, 16<<20)
	def(&l.Depth, 1000)
	def(&l.Values, 1<<20)
	return l
}

// Encode returns base64(zlib(doc)), the form of a payload in an environment variable or
// a file.
func Encode(doc []byte) string {
	var buf bytes.Buffer
	w, err := zlib.NewWriterLevel(&buf, zlib.BestCompression)
	if err == nil {
		_, err = w.Write(doc)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil { // a bytes.Buffer never refuses a write and the level is a constant
		panic(err)
	}
	return base64.StdEncoding.EncodeToString(buf.Bytes())
}

// Decode unpacks a payload to its JSON object. Like Python's decoder, it skips
// characters outside the base64 alphabet and ignores bytes after the zlib stream. It
// does not keep data over a limit in memory.
func Decode(text string, lim Limits) (*Object, error) {
	doc, err := Inflate(text, lim)
	if err != nil {
		return nil, err
	}
	return ParseObject(doc, lim)
}

// Inflate decodes base64 and zlib and returns the JSON text, which is valid UTF-8 of at
// most lim.JSON bytes.
func Inflate(text string, lim Limits) (string, error) {
	lim = lim.orDefault()
	if len(text) > lim.Encoded {
		return "", fmt.Errorf("the payload is over %d bytes of base64 text; send a smaller submission", lim.Encoded)
	}
	packed, err := decodeBase64(text)
	var size int64
	if err == nil {
		// The first pass only counts, so that a bomb takes time up to the limit and no
		// memory.
		size, err = inflate(io.Discard, packed, lim.JSON)
	}
	if err != nil {
		if strings.HasPrefix(strings.TrimLeft(text, " \t\r\n"), "{") {
			err = errors.New("the payload is JSON text; encode it with kbnode payload encode, or give it to kbnode runner with --config")
		}
		return "", err
	}
	var doc strings.Builder
	doc.Grow(int(size))
	if _, err := inflate(&doc, packed, lim.JSON); err != nil {
		return "", err
	}
	if !utf8.ValidString(doc.String()) {
		return "", errors.New("the payload's JSON is not UTF-8; encode it as UTF-8")
	}
	return doc.String(), nil
}

func inflate(w io.Writer, packed []byte, limit int) (int64, error) {
	if bytes.HasPrefix(packed, []byte{0x1f, 0x8b}) {
		return 0, errors.New("the payload is gzip; compress it with zlib instead")
	}
	z, err := zlib.NewReader(bytes.NewReader(packed))
	if err != nil {
		return 0, fmt.Errorf("the payload is not a zlib stream (%w); send base64 of zlib of JSON", err)
	}
	n, err := io.Copy(w, io.LimitReader(z, int64(limit)+1))
	if err != nil {
		return 0, fmt.Errorf("the payload's zlib stream is damaged (%w); send it whole", err)
	}
	if n > int64(limit) {
		return 0, fmt.Errorf("the payload unpacks to more than %d bytes of JSON; send a smaller submission", limit)
	}
	return n, nil
}

// decodeBase64 works like CPython's binascii.a2b_base64 in its default, lax mode: it
// skips foreign ASCII characters, padding that closes a group ends the data, and
// padding elsewhere is skipped.
func decodeBase64(text string) ([]byte, error) {
	out := make([]byte, 0, len(text)/4*3+3)
	var (
		group uint32
		have  int // characters in the current group of four
		pads  int
		count int
	)
	for i := range len(text) {
		c := text[i]
		if c >= utf8.RuneSelf {
			return nil, fmt.Errorf("the payload holds a byte that is not ASCII at offset %d; send base64 text", i)
		}
		if c == '=' {
			if have >= 2 {
				pads++
				if have+pads >= 4 {
					return appendRest(out, group, have), nil
				}
			}
			continue
		}
		v := strings.IndexByte(alphabet, c)
		if v < 0 {
			continue
		}
		pads = 0
		count++
		group = group<<6 | uint32(v)
		if have++; have == 4 {
			out = append(out, byte(group>>16), byte(group>>8), byte(group))
			group, have = 0, 0
		}
	}
	switch have {
	case 0:
		return out, nil
	case 1:
		return nil, fmt.Errorf("the payload is not base64: %d characters cannot be one more than a multiple of 4", count)
	default:
		return nil, errors.New("the payload is not base64: its padding is missing; it may have been cut")
	}
}

const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

func appendRest(out []byte, group uint32, have int) []byte {
	if have == 2 {
		return append(out, byte(group>>4))
	}
	return append(out, byte(group>>10), byte(group>>2))
}
