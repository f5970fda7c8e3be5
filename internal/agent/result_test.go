package agent

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/gpu-mode/kbnode/test/must"
)

func TestUnfinished(t *testing.T) {
	t.Parallel()
	const forged, failed = `{"success": true, "error": "", "system": {}, "runs": {}}`, `{"success": false, "error": "x", "system": {}, "runs": {}}`
	for name, row := range map[string]struct {
		text, status string
		canceled     bool
		removed      bool
	}{
		"a verdict":                          {text: forged, status: "0"},
		"an error of the runner":             {text: failed, status: "1"},
		"a canceled job":                     {text: failed, status: "-1", canceled: true},
		"the runner was killed":              {text: forged, status: "137", removed: true},
		"killed, and careful":                {text: failed, status: "137", removed: true},
		"killed, in a script that maps it":   {text: forged, status: "1", removed: true},
		"killed while canceled":              {text: forged, status: "-1", canceled: true, removed: true},
		"Go's end":                           {text: forged, status: "2", removed: true},
		"the runner could not write":         {text: failed, status: "3", removed: true},
		"no command ran":                     {text: forged, removed: true},
		"success in capitals":                {text: `{"success": true, "SUCCESS": false, "runs": {}}`, status: "1", removed: true},
		"success twice":                      {text: `{"success": false, "success": true, "runs": {}}`, status: "1", removed: true},
		"no JSON, or another reader's":       {text: "\xff\xfe{\x00}\x00", status: "137", removed: true},
		"another job's result":               {text: `{"accuracy": 0.9}`, status: "3"},
		"nothing":                            {status: "137"},
		"a directory in its place, which is": {text: "/", status: "137", removed: true},
		"a link in its place":                {text: "@", status: "137", removed: true},
		"a link to what a failed job leaves": {text: "@", status: "1", removed: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			path := filepath.Join(dir, "result.json")
			var err error
			switch row.text {
			case "":
			case "/":
				err = os.Mkdir(path, 0o755)
			case "@":
				err = errors.Join(os.WriteFile(filepath.Join(dir, "x"), []byte(failed), 0o600), os.Symlink("x", path))
			default:
				err = os.WriteFile(path, []byte(row.text), 0o600)
			}
			must.Do(t, err)
			root, err := os.OpenRoot(dir)
			must.Do(t, err)
			defer root.Close() //nolint:errcheck // a directory
			must.Err(t, unfinished(root, row.status, row.canceled), "")
			if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) != (row.removed || row.text == "") {
				t.Errorf("result.json: %v", err)
			}
		})
	}
}
