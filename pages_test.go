package star_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Files and functions through which docs/architecture.md leads are there.
func TestThroughTheCode(t *testing.T) {
	page, err := os.ReadFile("docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(page), "\n## Through the code\n")
	section, _, _ = strings.Cut(section, "\n## ")
	file, text, n := "", "", 0
	for _, m := range regexp.MustCompile("`([a-zA-Z/]+\\.go|[a-zA-Z]+)`").FindAllStringSubmatch(section, -1) {
		if name := m[1]; !strings.HasSuffix(name, ".go") {
			if n++; !regexp.MustCompile(`(?m)^func (\(.*\) )?` + name + `\(`).MatchString(text) {
				t.Errorf("%s has no function %s", file, name)
			}
			continue
		}
		b, err := os.ReadFile(m[1])
		if err != nil {
			t.Error(err)
		}
		file, text = m[1], string(b)
	}
	if n < 20 {
		t.Errorf("only %d functions in the section", n)
	}
}
