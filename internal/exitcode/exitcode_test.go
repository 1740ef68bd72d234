package exitcode

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"strings"
	"testing"

	"star/internal/generated"
)

// docs/recover.md has the table, and the table has every code once, in order.
func TestPage(t *testing.T) {
	var b strings.Builder
	b.WriteString("| exit | meaning | for example |\n|---|---|---|\n")
	for i, c := range Table {
		if i > 0 && Table[i-1].Number >= c.Number {
			t.Errorf("%d follows %d", c.Number, Table[i-1].Number)
		}
		fmt.Fprintf(&b, "| %d | %s | %s |\n", c.Number, c.Meaning, c.Examples)
	}
	generated.Section(t, "../../docs/recover.md", "exit codes", "go test ./internal/exitcode -write", b.String())

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
