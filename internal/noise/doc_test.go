package noise

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

// TestPage checks that the example in docs/results.md is a record and that the page
// explains every field.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/results.md")
	must.Do(t, err)
	m := regexp.MustCompile("(?s)\n## node.json\n.*?```json\n(.*?)```(.*)").FindSubmatch(page)
	if m == nil {
		t.Fatal("no example")
	}
	decode := json.NewDecoder(bytes.NewReader(m[1]))
	decode.DisallowUnknownFields()
	var rec Record
	must.Do(t, decode.Decode(&rec))
	again := rec
	again.Schema = Schema
	again.Noisy, again.Why = Judge(rec)
	again.Notes = notes(rec)
	must.Equal(t, again, rec)
	fields(reflect.TypeFor[Record](), func(name string) {
		if name != "error" && !bytes.Contains(m[1], []byte(`"`+name+`":`)) {
			t.Errorf("the example has no %s", name)
		}
	})
	for f := range reflect.TypeFor[Record]().Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Type.Kind() == reflect.Struct && f.Type.NumField() > 3 && f.Type.PkgPath() == "github.com/gpu-mode/kbnode/internal/noise" && name != "neighbours" {
			for g := range f.Type.Fields() {
				sub, _, _ := strings.Cut(g.Tag.Get("json"), ",")
				if sub != "id" && sub != "cpus" && !bytes.Contains(m[2], []byte(name+"."+sub)) && !bytes.Contains(m[2], []byte("`"+sub+"`")) {
					t.Errorf("%s.%s is not explained", name, sub)
				}
			}
		} else if name != "schema" && name != "slot" && !bytes.Contains(m[2], []byte("`"+name+"`")) && !bytes.Contains(m[2], []byte("`"+name+".")) {
			t.Errorf("%s is not explained", name)
		}
	}
}

// fields calls each for every name in the JSON of a type.
func fields(t reflect.Type, each func(string)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t.PkgPath() == "time" {
		return
	}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		each(name)
		fields(f.Type, each)
	}
}
