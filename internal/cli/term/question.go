package term

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/term"

	"github.com/gpu-mode/kbnode/internal/std/limit"
)

// ErrDeclined ends a command at a question that was not answered with yes.
var ErrDeclined = errors.New("nothing was changed")

// Asks reports whether there is a person to ask, who sees the question and types the answer.
func (s Streams) Asks() bool {
	_, sees := Terminal(s.Err)
	return sees && IsTerminal(s.In)
}

// Confirm asks a person. Without a terminal it returns the usage error otherwise, which says
// what to type instead.
func (s Streams) Confirm(ctx context.Context, question, otherwise string) error {
	if !s.Asks() {
		return Usagef("%s", otherwise)
	}
	answer, err := s.Answer(ctx, question+" [y/N]", false)
	if err != nil {
		return err
	}
	if a := strings.ToLower(answer); a != "y" && a != "yes" {
		return ErrDeclined
	}
	return nil
}

// Question asks a person, if necessary again, until take accepts the answer. The terminal does not
// show an answer that is secret.
func (s Streams) Question(ctx context.Context, prompt string, secret bool, take func(string) error) error {
	for {
		answer, err := s.Answer(ctx, prompt, secret)
		if err != nil {
			return err
		}
		if err = take(answer); err == nil || ctx.Err() != nil || errors.Is(err, ErrDeclined) {
			return err
		}
		s.Progress("%v", err)
	}
}

// Answer reads a line from the terminal, without the blanks around it. At Ctrl-C, Ctrl-D or the end
// of ctx it returns errDeclined, and the terminal is as it was before.
func (s Streams) Answer(ctx context.Context, prompt string, secret bool) (string, error) {
	if ctx.Err() != nil {
		return "", ErrDeclined
	}
	f, ok := s.In.(*os.File)
	if !ok {
		return "", ErrDeclined
	}
	read := bufio.NewReader(f).ReadString // one line at most: that is what a terminal gives
	if secret {
		// Raw mode also keeps Ctrl-Z and Ctrl-\ from ending kbnode while nothing is shown.
		before, err := term.MakeRaw(int(f.Fd()))
		if err != nil {
			return "", fmt.Errorf("hide what is typed: %w", err)
		}
		defer func() { _ = term.Restore(int(f.Fd()), before) }()
		t := term.NewTerminal(struct {
			io.Reader
			io.Writer
		}{single{f}, s.Err}, "")
		read = func(byte) (string, error) { return t.ReadPassword(prompt + " ") }
	} else {
		Printf(s.Err, "%s ", prompt)
	}
	if typed, err := limit.Until(ctx, func() (string, error) { return read('\n') }); err == nil {
		return strings.TrimSpace(typed), nil
	}
	_, _ = io.WriteString(s.Err, "\r\n")
	return "", ErrDeclined
}

// single reads byte by byte, and so leaves what was typed after a line to the next question.
type single struct{ io.Reader }

func (r single) Read(p []byte) (int, error) { return r.Reader.Read(p[:min(1, len(p))]) }
