package main

import (
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const repository = "../.."

var (
	link     = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	code     = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	fences   = regexp.MustCompile("(?s)```.*?```")
	pageName = regexp.MustCompile(`\b(docs|bench)/[\w./-]+\.md\b`)
	heading  = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	noAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// anchors are the fragments that lead to headings of a page, as GitHub makes them.
func anchors(text string) (as []string) {
	for _, m := range heading.FindAllStringSubmatch(fences.ReplaceAllString(text, ""), -1) {
		a := strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")
		as = append(as, a)
	}
	return as
}

// deadLinks returns the links of a page that lead nowhere. read returns a file of the repository.
func deadLinks(page, text string, read func(string) (string, bool)) (bad []string) {
	for _, m := range link.FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		to, fragment, _ := strings.Cut(m[1], "#")
		if strings.Contains(to, "://") || strings.HasPrefix(to, "mailto:") {
			continue
		}
		target, is := text, true
		if to != "" {
			target, is = read(path.Join(path.Dir(page), to))
		}
		if !is || fragment != "" && !slices.Contains(anchors(target), fragment) {
			bad = append(bad, m[1])
		}
	}
	return bad
}

// tracked lists the files of the repository, from its root; it skips the test where git is not there.
func tracked(t *testing.T, patterns ...string) []string {
	t.Helper()
	cmd := exec.Command("git", append([]string{"ls-files", "--cached", "--others", "--exclude-standard", "--"}, patterns...)...)
	cmd.Dir = repository
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("git ls-files: %v", err)
	}
	var files []string
	for _, f := range strings.Fields(string(out)) {
		if _, err := os.Stat(filepath.Join(repository, f)); err == nil { // not one that was removed and is not committed yet
			files = append(files, f)
		}
	}
	return files
}

// Every link between our pages leads to a file and a heading that exist, and every page that code and text name exists.
func TestLinks(t *testing.T) {
	read := func(name string) (string, bool) {
		b, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil { // a folder will do
			_, err = os.Stat(filepath.Join(repository, name))
		}
		return string(b), err == nil
	}
	pages := 0
	for _, name := range tracked(t, "*.md", "*.go", "*.sh", "*.py", "*.yaml") {
		text, ok := read(name)
		if !ok {
			t.Fatalf("cannot read %s", name)
		}
		if strings.HasSuffix(name, ".md") {
			pages++
			for _, bad := range deadLinks(name, text, read) {
				t.Errorf("%s: the link %s leads nowhere", name, bad)
			}
		}
		for _, page := range pageName.FindAllString(text, -1) {
			if _, ok := read(page); !ok {
				t.Errorf("%s names %s, which is not there", name, page)
			}
		}
	}
	if pages < 30 {
		t.Errorf("found %d pages only", pages)
	}
}

// sectionName is the name of a page, and a section of it in italics: `docs/modes.md`, *Local steps*.
var sectionName = regexp.MustCompile("((?:docs|bench)/[\\w./-]+\\.md)`?, \\*([^*]+)\\*")

// deadSections returns the sections that text names behind a page, where the page has no such heading.
func deadSections(text string, read func(string) (string, bool)) (bad []string) {
	text = regexp.MustCompile(`\n[ \t]*(?://|#)?[ \t]*`).ReplaceAllString(text, " ")
	for _, m := range sectionName.FindAllStringSubmatch(text, -1) {
		page, _ := read(m[1])
		if !slices.Contains(anchors(page), anchors("# " + m[2])[0]) {
			bad = append(bad, m[0])
		}
	}
	return bad
}

// Every section that text names behind its page exists.
func TestSections(t *testing.T) {
	read := func(name string) (string, bool) {
		b, err := os.ReadFile(filepath.Join(repository, name))
		return string(b), err == nil
	}
	for _, name := range tracked(t, "*.md", "*.go", "*.sh", "*.py") {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		text, _ := read(name)
		for _, bad := range deadSections(text, read) {
			t.Errorf("%s: no such section: %s", name, bad)
		}
	}
	pages := func(string) (string, bool) { return "# Page\n## Local steps\n", true }
	if bad := deadSections("(`docs/modes.md`, *Local\n\t// steps*; docs/modes.md, *Trials*; `docs/modes.md`, *Page*)", pages); !slices.Equal(bad, []string{"docs/modes.md, *Trials*"}) {
		t.Errorf("of three sections %q were not found", bad)
	}
}

// The equations of docs/theory.md and docs/compression.md have the numbers 1, 2, …, in order, and text refers to no
// other.
func TestEquations(t *testing.T) {
	label := regexp.MustCompile(`(?m)^    .* {3}\((\d+)\)$`)
	for _, name := range []string{"docs/theory.md", "docs/compression.md"} {
		b, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range label.FindAllStringSubmatch(string(b), -1) {
			if n++; m[1] != strconv.Itoa(n) {
				t.Errorf("%s: equation %s after %d", name, m[1], n-1)
			}
		}
		if n < 8 {
			t.Errorf("%s: %d equations", name, n)
		}
		for _, m := range regexp.MustCompile(`(?m)(?:^|[ (])\((\d+)\)`).FindAllStringSubmatch(string(b), -1) {
			if k, _ := strconv.Atoi(m[1]); k < 1 || k > n {
				t.Errorf("%s refers to equation %s of %d", name, m[1], n)
			}
		}
	}
}

func TestBrokenLinks(t *testing.T) {
	files := map[string]string{"pages/a.md": "# Two words: and a third\n", "pages": ""}
	read := func(name string) (string, bool) { text, ok := files[name]; return text, ok }
	text := "## Here\n[1](pages/a.md) [2](pages/a.md#two-words-and-a-third) [3](#here) [4](https://x.org/y) [5](pages) `[6](no)`\n"
	if bad := deadLinks("README.md", text, read); bad != nil {
		t.Errorf("good links are refused: %v", bad)
	}
	text = "# Here\n[1](pages/b.md) [2](pages/a.md#two) [3](#there) [4](a.md)\n```\n# there\n```\n"
	if bad := deadLinks("README.md", text, read); len(bad) != 4 {
		t.Errorf("of four broken links %v were found", bad)
	}
}

// Tests, files and log lines that pages name are there, so that a page is noticed when what it speaks of is renamed.
func TestNamesInPages(t *testing.T) {
	var code, lines strings.Builder // lines: without tests
	for _, name := range tracked(t, "*.go") {
		b, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		code.Write(b)
		if !strings.HasSuffix(name, "_test.go") {
			lines.Write(b)
		}
	}
	aTest := regexp.MustCompile(`\b(?:Test|Fuzz|Benchmark)[A-Z]\w+`)
	aFile := regexp.MustCompile("`((?:[a-z]+/)+[\\w.-]+\\.(?:go|sh|py|md|txt|yaml))`")
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`\bfunc (\w+)\(`).FindAllStringSubmatch(code.String(), -1) {
		known[m[1]] = true
	}
	found := 0
	for _, name := range tracked(t, "*.md") {
		b, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, test := range aTest.FindAllString(string(b), -1) {
			if found++; !known[test] {
				t.Errorf("%s names %s, which is not there", name, test)
			}
		}
		for _, m := range aFile.FindAllStringSubmatch(string(b), -1) {
			found++
			_, here := os.Stat(filepath.Join(repository, m[1]))
			if _, err := os.Stat(filepath.Join(repository, path.Dir(name), m[1])); here != nil && err != nil {
				t.Errorf("%s names %s, which is not there", name, m[1])
			}
		}
	}
	if found < 200 {
		t.Errorf("found %d names only", found)
	}
	b, err := os.ReadFile(filepath.Join(repository, "docs/monitoring.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(b), "\n| line | from | meaning |\n")
	if !ok {
		t.Fatal("docs/monitoring.md has no table of log lines")
	}
	for line := range strings.Lines(table) {
		for _, message := range quoted(strings.SplitN(line+"||", "|", 3)[1]) {
			if !strings.Contains(lines.String(), `"`+strings.TrimSuffix(message, " …")) {
				t.Errorf("docs/monitoring.md has the log line %q, which nothing writes", message)
			}
		}
	}
}
