package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gpu-mode/kbnode/internal/task"
)

// readProblem reads a problem, by its directory or its name, and a submission to it: the file in
// args, or the one in the problem's directory. Its errors are of usage.
func readProblem(name string, args []string) (t *task.Task, submission string, err error) {
	if t, err = task.Find(name); err != nil {
		return nil, "", usage(err)
	}
	if len(args) > 0 {
		submission, err = task.ReadSubmissionFile(args[0])
	} else if submission, err = task.ReadSubmission(t.FS(), t.Submission); errors.Is(err, fs.ErrNotExist) {
		return nil, "", usagef("%s has no %s of its own; name the file of your submission", t.Dir, t.Submission)
	}
	if err != nil {
		return nil, "", usage(fmt.Errorf("read submission: %w", err))
	}
	return t, submission, nil
}

// problemFor returns how to name the problem of a submission on a command line: its directory, if
// that is a problem, or a word to replace.
func problemFor(submission string) string {
	if dir := filepath.Dir(submission); isProblem(dir) {
		return dir
	}
	return "PROBLEM"
}

func isDir(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.IsDir()
}

func isProblem(dir string) bool {
	info, err := os.Stat(filepath.Join(dir, task.FileName))
	return err == nil && info.Mode().IsRegular()
}

// problemValues completes the name of an example once it has begun, and directories otherwise.
func problemValues(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var names []cobra.Completion
	for _, name := range task.Examples() {
		if strings.HasPrefix(name, typed) {
			names = append(names, name)
		}
	}
	if len(names) == 0 || typed == "" {
		return nil, cobra.ShellCompDirectiveFilterDirs
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
