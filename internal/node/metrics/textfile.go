package metrics

import (
	"bytes"
	"errors"
	"path/filepath"
	"strings"

	"github.com/prometheus/common/expfmt"

	"github.com/gpu-mode/kbnode/internal/machine/textfile"
)

// file is the metrics as a file for node_exporter.
type file struct {
	textfile.Keeper
	dir    string // in which it is; "" if it is in none
	failed string // why it is not as wanted, as logged
}

// keepFile writes the file to a directory, "" for none, and removes it from another. A failure is retried at each pass.
func (e *Exporter) keepFile(dir string) {
	if e.Root == "" {
		return
	}
	var text []byte
	var err error
	if dir != "" {
		text, err = e.text()
	}
	if err == nil {
		err = e.file.Keep(dir, text)
	}
	switch {
	case err != nil && err.Error() != e.file.failed:
		e.file.failed = err.Error()
		e.Log.Warn("metrics not written for node_exporter", "err", err)
	case err == nil && (dir != e.file.dir || e.file.failed != ""):
		e.file.dir, e.file.failed = dir, ""
		if dir != "" {
			e.Log.Info("metrics written for node_exporter", "path", filepath.Join(dir, textfile.Name))
		}
	}
}

// text returns kbnode's own metrics as /metrics has them. Those of each program are left out: node_exporter has them of
// itself, and refuses two of a name.
func (e *Exporter) text() ([]byte, error) {
	families, err := e.gather()
	if len(families) > 0 {
		err = nil // as for /metrics, an error of one must not hide the others
	}
	var b bytes.Buffer
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), "kbnode_") {
			_, failed := expfmt.MetricFamilyToText(&b, f)
			err = errors.Join(err, failed)
		}
	}
	return b.Bytes(), err
}
