package events

import (
	"bufio"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
)

// Place is how far someone has read a log. It can be stored, and stays valid when the file is moved.
type Place struct {
	// File is a hash of the file's first line: an inode would be that of the next file soon. 0 is the beginning of a log.
	File   uint64 `json:"file"`
	Offset int64  `json:"offset"`
}

// End returns the place after the newest event.
func (l Log) End() (at Place, err error) {
	err = l.ReadFrom(Place{}, func(_ Event, after Place) { at = after })
	return at, err
}

// ReadFrom calls fn with every event after a place, and with the place after each. If the log no longer has the place, it
// begins with the oldest event, or that of the place's file.
func (l Log) ReadFrom(at Place, fn func(e Event, after Place)) error {
	// The newer one is opened first: if it is moved meanwhile, both are it.
	newer, err := open(l.File)
	if err != nil {
		return err
	}
	defer newer.Close() //nolint:errcheck // opened for reading
	older, err := open(l.File + ".1")
	if err != nil {
		return err
	}
	defer older.Close() //nolint:errcheck // opened for reading
	files := []file{older, newer}
	if at.File == newer.id && at.File != 0 || older.id == newer.id {
		files = files[1:]
	}
	for _, f := range files {
		if f.id == 0 {
			continue
		}
		offset, err := f.from(at)
		if err != nil {
			return err
		}
		if _, err := scan(f.File, offset, func(e Event, next int64) { fn(e, Place{f.id, next}) }); err != nil {
			return fmt.Errorf("read events: %w", err)
		}
	}
	return nil
}

type file struct {
	*os.File
	id uint64 // Place.File; 0 of a file without a line, and of none
}

// from returns the offset of a place, or 0 if it is not in the file: a crash may have taken the end of it.
func (f file) from(at Place) (int64, error) {
	if f.id != at.File {
		return 0, nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, fmt.Errorf("read events: %w", err)
	}
	if at.Offset < 0 || at.Offset > info.Size() {
		return 0, nil
	}
	return at.Offset, nil
}

func open(name string) (file, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return file{}, nil
	}
	if err != nil {
		return file{}, fmt.Errorf("read events: %w", err)
	}
	line, err := bufio.NewReaderSize(f, maxLine).ReadSlice('\n')
	if errors.Is(err, io.EOF) { // it is empty, or its first line is being written
		return file{File: f}, nil
	}
	if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
		return file{}, errors.Join(fmt.Errorf("read events: %w", err), f.Close())
	}
	h := fnv.New64a()
	_, _ = h.Write(line) // never an error
	return file{f, h.Sum64()}, nil
}
