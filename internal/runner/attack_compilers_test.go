package runner

import (
	"testing"
	"time"
)

// TestProductsHoldNoRunner has compilers make many large files of holes in temporary directories, the names of which must
// be in none: to look takes no longer than a program that ends at once.
func TestProductsHoldNoRunner(t *testing.T) {
	t.Parallel()
	needCompilers(t, "truncate")
	j := newConfigJob(t, map[string]any{
		"lang": "py", "mode": "test", "main": "eval.py", "tests": []map[string]int{{"a": 1}},
		"sources": map[string]string{"submission.py": builder + `
import time
for i in range(8):
    d = tempfile.mkdtemp()
    subprocess.Popen(["cc", d + "/x"], cwd=d, stdin=subprocess.DEVNULL)
print("-DTORCH_EXTENSION_NAME done", flush=True)
time.sleep(3)
os._exit(0)
`, "eval.py": report + "o('check: pass\\n')"},
	})
	j.standIn(t, "cc", `for i in 0 1 2 3 4 5 6 7 8 9; do truncate -s 256M $i$i $i.0 $i.1 $i.2 $i.3 $i.4 $i.5 $i.6 $i.7 $i.8 $i.9; done`)
	start := time.Now()
	_, result := j.run(t)
	if took := time.Since(start); took > 25*time.Second || at(result, "success") != true {
		t.Errorf("it took %v: %v\n%s", took, result, j.stderr.String())
	}
}
