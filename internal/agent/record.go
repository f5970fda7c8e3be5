package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
)

// recordName is the name of the noise record, beside result.json in the checkout.
const recordName = "node.json"

// WriteRecord writes the noise record into a directory. A job may have put anything in its place: a
// link or a file is replaced, not followed or written to, a directory is moved aside, and nothing is
// written elsewhere.
func WriteRecord(dir, text string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("write %s: %w", recordName, err)
	}
	defer func() { _ = root.Close() }()
	fresh := "." + recordName + "." + rand.Text()
	f, err := root.OpenFile(fresh, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return fmt.Errorf("write %s: %w", recordName, err)
	}
	_, err = f.WriteString(text)
	if err = errors.Join(err, f.Close()); err == nil {
		if info, statErr := root.Lstat(recordName); statErr == nil && info.IsDir() {
			err = root.Rename(recordName, fresh+".job")
		}
	}
	if err == nil {
		err = root.Rename(fresh, recordName)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", recordName, err), root.Remove(fresh))
	}
	return nil
}
