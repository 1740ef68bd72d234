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
	"unicode/utf8"
)

// unplain are words that CONTRIBUTING.md replaces: pronouns of persons for a process, private idioms, and household
// metaphors.
var unplain = func() map[string]bool {
	all := map[string]bool{}
	for phrase := range strings.SplitSeq("who,whom,whose,whoever,nobody,everybody,somebody,"+
		"is none,are none,of which,so many,is there,goes with,stands,a word of,is heard,is told,are told,held against,anew,"+
		"comes to,what bites,beyond every use,"+
		"door,doors,hall,halls,seat,seats,ear,ears,sitting,sittings,estate,estates,guest,guests,"+
		"neighbour,neighbours,heir,heirs", ",") {
		all[phrase] = true
	}
	return all
}()

// unplainWords returns the lines of text that have one, and which. Python's None is another word than "none".
func unplainWords(text []byte) (lines []int, found []string) {
	var last, before string // the two words before
	line := 1
	for i := 0; i < len(text); {
		if text[i] == '\n' {
			line++
		}
		if !letter(text[i]) {
			i++
			continue
		}
		begin := i
		for i < len(text) && letter(text[i]) {
			i++
		}
		word := string(text[begin:i])
		if word != "None" {
			word = strings.ToLower(word)
		}
		for _, phrase := range []string{word, last + " " + word, before + " " + last + " " + word} {
			if unplain[phrase] {
				lines, found = append(lines, line), append(found, phrase)
			}
		}
		before, last = last, word
	}
	return lines, found
}

func letter(b byte) bool { return 'a' <= b|0x20 && b|0x20 <= 'z' }

// TestPlainEnglish looks for those words in product code, Python, scripts and pages.
func TestPlainEnglish(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"testdata", "bin", "dist", ".git", "node_modules", "__pycache__", "star-out"}, d.Name()) {
			return filepath.SkipDir
		}
		lines, words := unplainWords(prose(path))
		for i, word := range words {
			t.Errorf("%s:%d: %q is a word that CONTRIBUTING.md replaces", path, lines[i], word)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// prose returns what a person reads of a file, with its line breaks: of Go the comments, strings and names (with spaces
// between the words of a name), but no struct tags, since their names belong to formats; of tests in Go the comments;
// of Python, scripts and pages everything; of other files nothing.
func prose(path string) []byte {
	switch filepath.Ext(path) {
	case ".go":
	case ".py", ".md", ".sh", ".js", ".html":
		b, _ := os.ReadFile(path)
		if filepath.Ext(path) == ".md" { // names in a format, in backquotes
			b = formatName.ReplaceAll(b, nil)
		}
		return b
	default:
		return nil
	}
	source, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	text := make([]byte, 0, len(source))
	files := token.NewFileSet()
	file := files.AddFile(path, -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	for line := 1; ; {
		pos, kind, literal := s.Scan()
		if kind == token.EOF {
			return text
		}
		for at := file.Line(pos); line < at; line++ {
			text = append(text, '\n')
		}
		if kind != token.COMMENT && strings.HasSuffix(path, "_test.go") { // names and data of tests
			continue
		}
		switch kind {
		case token.IDENT:
			literal = wordsOf.ReplaceAllString(literal, "$1 $2")
		case token.STRING:
			if structTag.MatchString(literal) {
				continue
			}
		case token.COMMENT:
		default:
			continue
		}
		line += strings.Count(literal, "\n")
		text = append(append(text, literal...), ' ')
	}
}

var structTag = regexp.MustCompile("^`(json|wire|yaml):")

var formatName = regexp.MustCompile("`[^`\n]*`")

var wordsOf = regexp.MustCompile(`([a-z0-9])([A-Z])`)

func TestUnplainWords(t *testing.T) {
	lines, found := unplainWords([]byte("Nobody is None\nor is\nnone; what bites, whoever"))
	if want := []int{1, 3, 3, 3}; !slices.Equal(lines, want) {
		t.Errorf("lines %v, want %v", lines, want)
	}
	if want := []string{"nobody", "is none", "what bites", "whoever"}; !slices.Equal(found, want) {
		t.Errorf("found %q, want %q", found, want)
	}
}

func TestProse(t *testing.T) {
	source := "package p\n\n// nobody reads\nvar errNobody = `so\nmany` // is none\ntype t struct { X int `json:\"who\"` }\n"
	path := filepath.Join(t.TempDir(), "p.go")
	if err := os.WriteFile(path, []byte(source), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, want := string(prose(path)), "p \n\n// nobody reads \nerr Nobody `so\nmany` // is none \nt X int "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// Comments have at most 120 columns, so that they are read beside other windows. Pictures, tables and addresses are as
// wide as they are.
func TestCommentWidth(t *testing.T) {
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"testdata", "bin", "dist", ".git", "node_modules", "star-out"}, d.Name()) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".go" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		line, output := 0, false
		for l := range strings.Lines(string(text)) {
			line++
			l = strings.TrimRight(l, "\n")
			output = strings.Contains(l, "// Output:") || output && strings.Contains(l, "//") // what an example prints
			if output {
				continue
			}
			if c := strings.TrimLeft(l, "\t"); utf8.RuneCountInString(l) > 120 && strings.HasPrefix(c, "// ") && !strings.HasPrefix(c, "//   ") && !strings.Contains(c, "://") {
				t.Errorf("%s:%d: a comment of %d columns, at most 120", path, line, utf8.RuneCountInString(l))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
