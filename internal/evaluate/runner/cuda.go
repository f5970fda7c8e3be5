package runner

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"golang.org/x/sys/unix"

	"github.com/gpu-mode/kbnode/internal/evaluate/payload"
	"github.com/gpu-mode/kbnode/internal/evaluate/result"
)

// evalProgram is the program that is compiled from the sources of a task in lang cu.
const evalProgram = "eval.out"

// cudaFlags are the compiler's flags for every task.
var cudaFlags = []string{
	"--std=c++20", "-DNDEBUG", "-Xcompiler=-Wno-psabi", "-Xcompiler=-fno-strict-aliasing",
	"--expt-extended-lambda", "--expt-relaxed-constexpr", "-forward-unknown-to-host-compiler",
	"-O3", "-Xnvlink=--verbose", "-Xptxas=--verbose", "-Xptxas=--warn-on-spills",
}

// cuda reads the fields of lang cu. It writes values that are not strings as Python
// would.
func (f *fields) cuda(c *config) {
	if v, _ := f.Get("headers"); v != nil {
		c.headers = f.texts("headers", v)
	}
	c.arch = "-arch=native"
	if v, _ := f.Get("arch"); v != nil {
		arch := payload.Str(v)
		c.arch = "-gencode=arch=compute_" + arch + ",code=sm_" + arch
	}
	c.flags = f.words("compile_flags")
	for _, flag := range c.flags {
		if !strings.HasPrefix(flag, "-") {
			f.refuse("compile_flags: %.100q does not begin with a dash; give one flag a string", flag)
		}
	}
	c.includes = f.words("include_dirs")
	for _, dir := range c.includes {
		c.flags = append(c.flags, "-I"+dir)
	}
	for _, lib := range f.words("libraries") {
		c.flags = append(c.flags, "-l"+lib)
	}
	f.defines(c)
	for _, s := range c.sources {
		if strings.HasPrefix(s.Key, "-") {
			f.refuse("sources: %.100q begins with a dash and would be an option of the compiler; name it otherwise", s.Key)
		}
	}
	for _, arg := range append(slices.Clone(c.flags), c.arch) {
		if strings.Contains(arg, "\x00") || payload.HasSurrogate(arg) {
			f.refuse("the compiler's argument %.100q holds a character that an argument cannot hold", arg)
		}
	}
}

// words returns a list of strings; null is an empty list.
func (f *fields) words(key string) []string {
	v, _ := f.Get(key)
	if v == nil {
		return nil
	}
	var words []string
	for i, e := range typed[[]payload.Value](f, key+":", v, "a list of strings") {
		words = append(words, typed[string](f, fmt.Sprintf("%s[%d]:", key, i), e, "a string"))
	}
	return words
}

func (f *fields) defines(c *config) {
	v, _ := f.Get("defines")
	if v == nil {
		return
	}
	for name, v := range typed[*payload.Object](f, "defines:", v, "an object of names and texts").All() {
		if !isIdentifier(name) {
			f.refuse("defines: %.100q is not a name; use letters, digits and _, no digit first", name)
		}
		flag := "-D" + name
		if v != nil {
			flag += "=" + payload.Str(v)
		}
		c.flags = append(c.flags, flag)
	}
}

// isIdentifier reports whether a text is a name in Python, except for a few characters.
func isIdentifier(s string) bool {
	for i, r := range s {
		first := r == '_' || unicode.In(r, unicode.L, unicode.Nl, unicode.Other_ID_Start)
		if !first && (i == 0 || !unicode.In(r, unicode.Mn, unicode.Mc, unicode.Nd, unicode.Pc, unicode.Other_ID_Continue)) {
			return false
		}
	}
	return s != ""
}

// checkIncludes returns an error if include directories do not exist.
func (e *engine) checkIncludes() error {
	var errs []error
	for _, dir := range e.includes {
		path := dir
		if !filepath.IsAbs(path) {
			path = filepath.Join(e.dir, path)
		}
		if info, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("include_dirs: %q is not there (%w); correct it, or add the directory to the job's image", dir, err))
		} else if !info.IsDir() {
			errs = append(errs, fmt.Errorf("include_dirs: %q is not a directory", dir))
		}
	}
	return errors.Join(errs...)
}

// compileCUDA writes the sources, compiles them and removes them, so that the program
// cannot read them. If ok is false, there is no program and c says why.
func (e *engine) compileCUDA(ctx context.Context) (c *result.Compilation, ok bool, err error) {
	defer func() { err = errors.Join(err, e.src.remove()) }()
	if err := e.src.put(); err != nil {
		return nil, false, err
	}
	nvcc := e.programs["nvcc"]
	if nvcc == "" {
		return &result.Compilation{Command: "which nvcc", ExitCode: 1}, false, nil
	}
	version, o, err := e.compiler(ctx, seconds(toolLimit), "nvcc", "--version")
	if err != nil || version.ExitCode != 0 {
		if version != nil && !o.timedOut {
			version.Stderr = "" // stderr is reported only for a compilation
		}
		return version, false, err
	}
	argv := slices.Concat([]string{nvcc}, cudaFlags, e.flags)
	for _, s := range e.sources {
		argv = append(argv, s.Key)
	}
	c, _, err = e.compiler(ctx, compileLimit, append(argv, e.arch, "-o", evalProgram)...)
	if err != nil {
		return nil, false, err
	}
	c.NvccFound, c.NvccVersion = true, newlines(decode(o.stdout.head))
	c.Success = c.ExitCode == 0
	if !c.Success {
		return c, false, nil
	}
	if info, err := e.src.root.Lstat(evalProgram); err != nil || !info.Mode().IsRegular() {
		fail(c, "the compiler left no program ("+evalProgram+")")
		return c, false, nil
	}
	return c, true, nil
}

// compiler runs a compiler and reports how it ended.
func (e *engine) compiler(ctx context.Context, l timeLimit, argv ...string) (*result.Compilation, *outcome, error) {
	o, err := e.runAlone(ctx, program{argv: argv, limit: l})
	if err != nil {
		return nil, nil, err
	}
	if o.cancelled {
		return nil, nil, cancelled(ctx)
	}
	c := &result.Compilation{Command: quote(argv), ExitCode: o.exitCode}
	c.Stdout, c.Stderr = o.texts()
	if o.timedOut {
		c.ExitCode = result.ExitTimeout
		fail(c, "stopped after its limit of "+l.text+" s")
	}
	return c, o, nil
}

// fail marks a compilation as failed and says why.
func fail(c *result.Compilation, why string) {
	c.Success = false
	c.Stderr = addLine(c.Stderr, why)
}

// addLine adds a line of kbnode's to an output.
func addLine(text, why string) string {
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	return text + "kbnode: " + why + "\n"
}

// cannotExecute reports whether a program did not start because of what the compiler
// made.
func cannotExecute(err error) bool {
	return errors.Is(err, unix.ENOEXEC) || errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) ||
		errors.Is(err, unix.ELIBBAD) || errors.Is(err, unix.EINVAL)
}
