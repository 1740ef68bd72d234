package star_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// quoted are the words in backquotes of a cell.
func quoted(cell string) (words []string) {
	for i, w := range strings.Split(cell, "`") {
		if i%2 == 1 {
			words = append(words, w)
		}
	}
	return words
}

// literals are the identifiers and the texts of a file.
func literals(t *testing.T, file string) (names map[string]bool, texts []string) {
	src, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	set := token.NewFileSet()
	var s scanner.Scanner
	s.Init(set.AddFile(file, -1, len(src)), src, nil, 0)
	names = map[string]bool{}
	for {
		switch _, tok, lit := s.Scan(); tok {
		case token.EOF:
			return names, texts
		case token.IDENT:
			names[lit] = true
		case token.STRING:
			texts = append(texts, lit)
		}
	}
}

// isModule says whether a folder is a Go module of its own.
func isModule(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

// TestWhereSomethingNewGoes compares the table of CONTRIBUTING.md with where the things that it names are in this
// module.
func TestWhereSomethingNewGoes(t *testing.T) {
	page, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## Where something new goes\n")
	table, _, _ = strings.Cut(table, "\n## ")
	type row struct {
		what         string
		names, files []string
		texts        []*regexp.Regexp
		found        []string
	}
	var rows []row
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || strings.HasPrefix(line, "|---") || strings.Contains(line, "| look for |") {
			continue
		}
		r := row{what: strings.TrimSpace(cells[1]), names: quoted(cells[2])}
		for _, w := range quoted(cells[3]) {
			if strings.HasSuffix(w, ".go") {
				r.files = append(r.files, w)
			}
		}
		for _, n := range r.names {
			r.texts = append(r.texts, regexp.MustCompile(`(^|[^\w-])`+regexp.QuoteMeta(n)+`($|[^\w-])`))
		}
		slices.Sort(r.files)
		rows = append(rows, r)
	}
	var whats []string
	for _, r := range rows {
		whats = append(whats, r.what)
	}
	if want := []string{"mode", "baseline", "codec", "model", "fault", "scheduling policy", "line of the run log"}; !slices.Equal(whats, want) {
		t.Fatalf("rows %q, want %q", whats, want)
	}
	err = filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && path != "." &&
			(strings.HasPrefix(name, ".") || name == "testdata" || name == "shared" || isModule(path)):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		names, texts := literals(t, path)
		for i := range rows {
			r := &rows[i]
			if slices.ContainsFunc(r.names, func(n string) bool { return names[n] }) ||
				slices.ContainsFunc(r.texts, func(re *regexp.Regexp) bool { return slices.ContainsFunc(texts, re.MatchString) }) {
				r.found = append(r.found, filepath.ToSlash(path))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		slices.Sort(r.found)
		if !slices.Equal(r.found, r.files) {
			t.Errorf("a new %s: %q are in %q, CONTRIBUTING.md says %q", r.what, r.names, r.found, r.files)
		}
	}
}
