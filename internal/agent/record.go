package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/gpu-mode/kbnode/internal/slot"
)

const (
	// recordName is the name of the noise record, beside result.json in the checkout.
	recordName = "node.json"
	// recordTime is how long the guard has to make it. A guard that does not listen is
	// not retried.
	recordTime = 20 * time.Second
	maxRecord  = 16 << 10 // bytes
)

// record asks the slot's guard for the job's noise record, which also ends what the
// job left running.
func record(ctx context.Context, socket string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	text, err := tryTell(ctx, socket, slot.RecordPath)
	if err == nil && (text == "" || len(text) > maxRecord) {
		err = fmt.Errorf("ask the slot's guard: it sent a record of %d bytes", len(text))
	}
	return text, err
}

// keepRecord writes the record into the checkout of slot k. A job may have put anything
// in its place: a link or a file is replaced, not followed or written to, a directory is
// moved aside, and nothing is written elsewhere.
func keepRecord(k int, checkout, text string) (err error) {
	at, err := checkoutDir(k, checkout)
	if err != nil {
		return fmt.Errorf("write %s: %w", recordName, err)
	}
	return WriteRecord(at, text)
}

// WriteRecord writes the noise record into a directory.
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
