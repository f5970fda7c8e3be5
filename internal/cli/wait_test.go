package cli

import (
	"errors"
)

func isExit(err error, code int) bool {
	var exit *exitError
	return errors.As(err, &exit) && exit.code == code
}
