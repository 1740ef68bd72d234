// Package generated keeps the parts of pages that tests write. Only tests import it.
package generated

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write the generated parts of pages")

// Section compares the part of a page between two marks with the wanted text, or replaces it with -write. The marks are
// <!-- NAME: begin (written by COMMAND) --> and <!-- NAME: end -->, on lines of their own.
func Section(t *testing.T, page, name, command, want string) {
	t.Helper()
	begin, end := "<!-- "+name+": begin (written by "+command+") -->\n", "<!-- "+name+": end -->\n"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %s", page, begin)
	}
	want = before + begin + "\n" + want + "\n" + end + after
	if *write {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not what the code says: %s", page, command)
	}
}
