package task

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/gpu-mode/kbnode/internal/lazy"
	"github.com/gpu-mode/kbnode/internal/payload"
)

// Kernelbot reads task.yml with PyYAML, so a plain scalar has the type that the
// resolver of PyYAML 6 gives it, by the rules of YAML 1.1 as far as PyYAML
// follows them. The expressions are compiled when a file is first read, since
// this program also starts for every evaluation.
var (
	intForm   = lazy.Regexp(`^(?:[-+]?0b[01_]+|[-+]?0[0-7_]+|[-+]?(?:0|[1-9][0-9_]*)|[-+]?0x[0-9a-fA-F_]+|[-+]?[1-9][0-9_]*(?::[0-5]?[0-9])+)$`)
	floatForm = lazy.Regexp(`^(?:[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+][0-9]+)?|\.[0-9][0-9_]*(?:[eE][-+][0-9]+)?|` +
		`[-+]?[0-9][0-9_]*(?::[0-5]?[0-9])+\.[0-9_]*|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$`)
	timeForm = lazy.Regexp(`^(?:\d{4}-\d\d-\d\d|\d{4}-\d\d?-\d\d?(?:[Tt]|[ \t]+)\d\d?:\d\d:\d\d(?:\.\d*)?(?:[ \t]*(?:Z|[-+]\d\d?(?::\d\d)?))?)$`)
	archForm = lazy.Regexp(`^[0-9]{2,3}[a-z]?$`) // as nvcc names an architecture, without sm_
	// What else Python's float() accepts, for a scalar tagged as a float.
	numberForm = lazy.Regexp(`^[-+]?(?:[0-9_]+\.?[0-9_]*|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?$`)
)

// maxDigits is Python's limit for converting integers from and to text.
const maxDigits = 4300

// plainTag returns the tag that PyYAML gives to a plain scalar.
func plainTag(s string) string {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return "!!null"
	case "yes", "Yes", "YES", "no", "No", "NO", "true", "True", "TRUE", "false", "False", "FALSE", "on", "On", "ON", "off", "Off", "OFF":
		return "!!bool"
	case "<<":
		return "!!merge"
	case "=":
		return "!!value"
	}
	if !strings.ContainsRune("+-.0123456789", rune(s[0])) {
		return "!!str"
	}
	switch {
	case floatForm().MatchString(s):
		return "!!float"
	case intForm().MatchString(s):
		return "!!int"
	case timeForm().MatchString(s):
		return "!!timestamp"
	}
	return "!!str"
}

// scalar returns the value of a scalar with a tag.
func scalar(tag, s string) (payload.Value, error) {
	switch tag {
	case "!!str":
		return s, nil
	case "!!null":
		return nil, nil
	case "!!bool":
		switch strings.ToLower(s) {
		case "yes", "true", "on":
			return true, nil
		case "no", "false", "off":
			return false, nil
		}
		return nil, fmt.Errorf("%s is not true or false", quote(s))
	case "!!int":
		return integer(s)
	case "!!float":
		return float(s)
	case "!!timestamp":
		return nil, fmt.Errorf("%s is a date, which a payload cannot carry; put it in quotes", quote(s))
	case "!!value", "!!merge":
		return nil, fmt.Errorf("%s means something else in YAML; put it in quotes", quote(s))
	}
	return nil, fmt.Errorf("the tag %s is for a value that a payload cannot carry; leave it out, or write a string, a number, a list or a group", quote(tag))
}

// integer reads what intForm matches: signs, _ between digits, prefixes 0b, 0x
// and 0 for octal, and base 60 with colons.
func integer(s string) (payload.Value, error) {
	bad := fmt.Errorf("%s is not a whole number; put it in quotes if it is a string", quote(s))
	if !intForm().MatchString(s) {
		return nil, bad
	}
	if len(s) > 4*maxDigits {
		return nil, fmt.Errorf("a whole number has over %d digits; Python reads no more", maxDigits)
	}
	digits := strings.ReplaceAll(s, "_", "")
	negative := digits[0] == '-'
	digits = strings.TrimLeft(digits, "+-")
	base := 10
	switch {
	case strings.HasPrefix(digits, "0b"):
		digits, base = digits[2:], 2
	case strings.HasPrefix(digits, "0x"):
		digits, base = digits[2:], 16
	case digits[0] == '0':
		base = 8
	}
	n := new(big.Int)
	for part := range strings.SplitSeq(digits, ":") {
		v, ok := new(big.Int).SetString(part, base)
		if !ok { // 0x_
			return nil, bad
		}
		n.Add(n.Mul(n, big.NewInt(60)), v)
	}
	if negative {
		n.Neg(n)
	}
	text := n.String()
	if len(strings.TrimPrefix(text, "-")) > maxDigits {
		return nil, fmt.Errorf("a whole number has over %d digits; Python reads no more", maxDigits)
	}
	return payload.Int(text), nil
}

// float reads what floatForm, intForm or numberForm matches, but not the
// prefixes 0x and 0b.
func float(s string) (payload.Value, error) {
	bad := fmt.Errorf("%s is not a number; put it in quotes if it is a string", quote(s))
	if !floatForm().MatchString(s) && !intForm().MatchString(s) && !numberForm().MatchString(s) {
		return nil, bad
	}
	text := strings.ToLower(strings.ReplaceAll(s, "_", ""))
	sign := 1.0
	if strings.HasPrefix(text, "-") {
		sign = -1
	}
	text = strings.TrimLeft(text, "+-")
	switch text {
	case ".inf":
		return payload.Float(math.Inf(int(sign))), nil
	case ".nan":
		return payload.Float(math.NaN()), nil
	}
	if strings.HasPrefix(text, "0x") || strings.HasPrefix(text, "0b") {
		return nil, bad
	}
	parts := strings.Split(text, ":")
	value, base := 0.0, 1.0
	for _, part := range slices.Backward(parts) {
		f, err := strconv.ParseFloat(part, 64)
		if err != nil && !errors.Is(err, strconv.ErrRange) || math.IsInf(base, 1) {
			return nil, bad
		}
		value += f * base
		base *= 60
	}
	return payload.Float(sign * value), nil
}
