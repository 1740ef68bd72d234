package exitcode

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write the table of docs/recover.md")

// docs/recover.md has the table, and the table has every code once, in order.
func TestPage(t *testing.T) {
	const (
		page  = "../docs/recover.md"
		begin = "<!-- exit codes: begin (written by go test ./exitcode -write) -->\n"
		end   = "<!-- exit codes: end -->\n"
	)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no %s", page, begin)
	}
	var b strings.Builder
	b.WriteString("| exit | meaning | for example |\n|---|---|---|\n")
	for i, c := range Table {
		if i > 0 && Table[i-1].Number >= c.Number {
			t.Errorf("%d follows %d", c.Number, Table[i-1].Number)
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", c.Number, c.Meaning, c.Examples)
	}
	want := before + begin + "\n" + b.String() + "\n" + end + after
	if *write {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not what the table says: go test ./exitcode -write", page)
	}

	f, err := parser.ParseFile(token.NewFileSet(), "exitcode.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := 0
	for _, d := range f.Decls {
		if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.CONST {
			constants += len(g.Specs)
		}
	}
	if constants != len(Table) {
		t.Errorf("%d constants, and the table has %d", constants, len(Table))
	}
}
