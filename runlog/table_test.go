package runlog

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"star/internal/generated"
)

// What docs/files.md says of lines and their fields is what the types say.
func TestTable(t *testing.T) {
	generated.Section(t, "../docs/files.md", "run log", "go test ./runlog -run TestTable -write", table(t))
}

// table has a paragraph for each type of line, and a row for each field.
func table(t *testing.T) string {
	types := map[string]*ast.TypeSpec{}
	about := map[string]string{}
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, s := range g.Specs {
				if s, ok := s.(*ast.TypeSpec); ok {
					doc := s.Doc
					if doc == nil {
						doc = g.Doc
					}
					types[s.Name.Name], about[s.Name.Name] = s, oneLine(doc)
				}
			}
		}
	}
	var b strings.Builder
	for i, e := range kinds {
		name := reflect.TypeOf(e).Name()
		rest, ok := strings.CutPrefix(about[name], name)
		if !ok {
			t.Errorf("the comment of %s does not begin with its name", name)
		}
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "`%s`%s\n", e.kind(), rest)
		fields := name
		if name == "Record" {
			fields = "recordLine"
		}
		rows(t, &b, types[fields])
	}
	return b.String()
}

// rows writes a table of the fields that are explained.
func rows(t *testing.T, b *strings.Builder, s *ast.TypeSpec) {
	of, ok := s.Type.(*ast.StructType)
	if !ok {
		return // as those of another type
	}
	said, all := 0, 0
	for _, f := range of.Fields.List {
		if f.Tag == nil {
			continue
		}
		all++
		tag, _ := strconv.Unquote(f.Tag.Value)
		name, options, _ := strings.Cut(reflect.StructTag(tag).Get("json"), ",")
		mark := ""
		if options != "" { // omitempty, omitzero
			mark = "?"
		}
		if text := oneLine(f.Comment); text != "" {
			if said++; said == 1 {
				b.WriteString("\n| field | meaning |\n|---|---|\n")
			}
			fmt.Fprintf(b, "| `%s`%s | %s |\n", name, mark, strings.ReplaceAll(text, "|", "\\|"))
		}
	}
	if said != 0 && said != all {
		t.Errorf("%s: %d of %d fields have a comment", s.Name.Name, said, all)
	}
}

func oneLine(c *ast.CommentGroup) string {
	return strings.TrimSpace(strings.ReplaceAll(c.Text(), "\n", " "))
}
