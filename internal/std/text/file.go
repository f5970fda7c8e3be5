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
		return fmt.Errorf("%.300s is a directory; name a file", name)
	case ok:
		err = why.Err
	}
	return fmt.Errorf("read %.300s: %w", name, err)
}
