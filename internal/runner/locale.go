package runner

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// localeDir is where glibc keeps locales.
const localeDir = "/usr/lib/locale"

// childEnv completes the environment of programs as starting the Python engine did: in
// the C locale, or in one that is not installed in dir, CPython sets LC_CTYPE and its
// children inherit it (PEP 538). Compilers' messages depend on it.
func childEnv(public []string, dir string) []string {
	if getenv(public, "LC_ALL") != "" || getenv(public, "PYTHONCOERCECLOCALE") == "0" {
		return public
	}
	name := getenv(public, "LC_CTYPE")
	if name == "" {
		name = getenv(public, "LANG")
	}
	if name != "" && name != "C" && name != "POSIX" && hasLocale(dir, name) {
		return public
	}
	return setenv(public, "LC_CTYPE", "C.UTF-8")
}

// hasLocale reports whether glibc would find a locale (LANGUAGE_TERRITORY.CODESET):
// built in, as a directory, or in the archive.
func hasLocale(dir, name string) bool {
	// glibc also looks for the codeset in lower-case letters and digits: utf8 for
	// UTF-8.
	normal := name
	base, modifier, modified := strings.Cut(name, "@")
	if language, codeset, ok := strings.Cut(base, "."); ok {
		normal = language + "." + strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
				return r
			}
			return -1
		}, strings.ToLower(codeset))
		if modified {
			normal += "@" + modifier
		}
	}
	if normal == "C.utf8" {
		return true
	}
	if strings.Contains(name, "/") {
		return false
	}
	archived := archivedLocales(filepath.Join(dir, "locale-archive"))
	for _, n := range []string{name, normal} {
		if info, err := os.Stat(filepath.Join(dir, n, "LC_CTYPE")); err == nil && info.Mode().IsRegular() {
			return true
		}
		if bytes.Contains(archived, []byte("\x00"+n+"\x00")) {
			return true
		}
	}
	return false
}

// archivedLocales returns the names in glibc's locale archive, separated by zero bytes.
// The header (locale/locarchive.h) consists of 32-bit numbers in native byte order: the
// first is a magic number, the sixth and seventh are the offset and the size of the
// names.
func archivedLocales(path string) []byte {
	f, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer f.Close() //nolint:errcheck // opened for reading
	var head [7]uint32
	if err := binary.Read(f, binary.NativeEndian, &head); err != nil || head[0] != 0xde020109 {
		return nil
	}
	names, err := io.ReadAll(io.NewSectionReader(f, int64(head[5]), min(int64(head[6]), 1<<20)))
	if err != nil {
		return nil
	}
	return append([]byte{0}, names...)
}
