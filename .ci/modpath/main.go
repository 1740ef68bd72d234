// Modpath gives the Go module another path, in all tracked files: go.mod, imports, generated code and what generates
// it, tests, scripts and pages.
//
//	make modpath MODULE=example.org/star
//	go run ./.ci/modpath example.org/star
//
// It changes files in place, and prints how many. Recorded files (testdata) stay as they are.
package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
)

// path is a module path as this program accepts it: words between slashes.
var path = regexp.MustCompile(`^[a-z0-9][a-z0-9._~-]*(/[A-Za-z0-9][A-Za-z0-9._~-]*)*$`)

func main() {
	if len(os.Args) != 2 || !path.MatchString(os.Args[1]) {
		fmt.Fprintln(os.Stderr, "modpath: want a module path, such as example.org/star (make modpath MODULE=example.org/star)")
		os.Exit(2)
	}
	n, err := rename(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, "modpath:", err)
		os.Exit(1)
	}
	fmt.Println(n, "files have changed")
}

// rename gives the module in the current folder the path to, and returns how many files that changed.
func rename(to string) (changed int, err error) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return 0, err
	}
	from, _, _ := strings.Cut(strings.TrimPrefix(string(mod), "module "), "\n")
	files, err := exec.Command("git", "ls-files", "-z").Output()
	if err != nil {
		return 0, fmt.Errorf("git ls-files: %w", err)
	}
	old, put := regexp.QuoteMeta(from), "${1}"+to+"${2}"
	// A package: not behind a part of another path, but behind \b of a script, or a link.
	inside := regexp.MustCompile(`(^|[^\w/.~-]|\\b|pkg\.go\.dev/)` + old + `(/)`)
	root := map[string]*regexp.Regexp{
		".go":            regexp.MustCompile(`(?m)^(\s*(?:import )?(?:\w+ )?")` + old + `("$)`),
		".mod":           regexp.MustCompile(`(?m)^((?:module|require|replace|\t) ?)` + old + `( |$)`),
		"_test.go":       regexp.MustCompile(`((?:imp|room) == "|\t\{")` + old + `(")`), // tests of imports
		"layering_test.": regexp.MustCompile(`(\{"` + old + `/\S*", ")` + old + `([" ])`),
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(files), "\x00"), "\x00") {
		info, err := os.Lstat(name)
		if err != nil || !info.Mode().IsRegular() || strings.Contains(name, "testdata/") {
			continue // deleted, a link, or recorded
		}
		b, err := os.ReadFile(name)
		if err != nil {
			return changed, err
		}
		if bytes.IndexByte(b, 0) >= 0 {
			continue
		}
		text := b
		for part, re := range root {
			if strings.HasSuffix(name, part) || strings.HasPrefix(name, part) {
				text = re.ReplaceAll(text, []byte(put))
			}
		}
		text = inside.ReplaceAll(text, []byte(put))
		if !bytes.Equal(text, b) {
			if err := os.WriteFile(name, text, info.Mode().Perm()); err != nil {
				return changed, err
			}
			changed++
		}
	}
	return changed, nil
}
