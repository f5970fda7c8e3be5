package text

import (
	"errors"
	"fmt"
	"io/fs"
)

// Absent is the error of a file that does not exist. It is an [fs.ErrNotExist].
type Absent struct {
	Name    string
	Instead string // what to do: "fix the path"
}

func (a *Absent) Error() string { return fmt.Sprintf("%.300s does not exist; %s", a.Name, a.Instead) }

// Is makes it an fs.ErrNotExist.
func (a *Absent) Is(target error) bool { return target == fs.ErrNotExist }

// denied is the error of a file that one may not read. It is an [fs.ErrPermission].
type denied string

func (d denied) Error() string {
	return fmt.Sprintf("you may not read %.300s; let its owner do it, or use sudo", string(d))
}

func (denied) Is(target error) bool { return target == fs.ErrPermission }

// directory is the error of a directory in place of a file.
type directory string

func (d directory) Error() string {
	return fmt.Sprintf("%.300s is a directory; name a file", string(d))
}

// Misnamed returns the name of a file that does not exist, is a directory, or may not be read, if a FileError says so.
func Misnamed(err error) (name string, ok bool) {
	if e, ok := errors.AsType[*Absent](err); ok {
		return e.Name, true
	}
	if e, ok := errors.AsType[denied](err); ok {
		return string(e), true
	}
	e, ok := errors.AsType[directory](err)
	return string(e), ok
}

// FileError says for people why a file could not be read. instead says what to do about one that does not exist.
func FileError(name string, err error, instead string) error {
	if err == nil {
		return nil
	}
	switch why, ok := errors.AsType[*fs.PathError](err); {
	case errors.Is(err, fs.ErrNotExist):
		return &Absent{name, instead}
	case errors.Is(err, fs.ErrPermission):
		return denied(name)
	case ok && why.Err.Error() == "is a directory":
		return directory(name)
	case ok:
		err = why.Err
	}
	return fmt.Errorf("read %.300s: %w", name, err)
}
