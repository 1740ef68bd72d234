package star

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// own are the keys that lines of a log begin with: slog's, and the process of a job (options.Logger, With).
var own = []string{"time", "level", "msg", "role", "rank", "cluster"}

// apart are packages with lines that have none of them but slog's: the resource service and the rings of the library
// log for themselves, or without a rank of a job.
var apart = []string{"cluster"}

// A line of a log has no key twice, neither of its own nor one of those that its logger puts before it: a reader of
// JSON keeps one of them, and which one is unknown.
func TestLogKeys(t *testing.T) {
	lines := 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, path, nil, 0)
		if err != nil {
			return err
		}
		begins := own
		if slices.Contains(apart, filepath.Dir(path)) {
			begins = own[:3]
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			first := map[string]int{"Debug": 1, "Info": 1, "Warn": 1, "Error": 1, "With": 0, "Log": 3}
			at, ok := first[sel.Sel.Name]
			if !ok || !logs(sel.X) || len(call.Args) < at || call.Ellipsis.IsValid() {
				return true
			}
			lines++
			var seen []string
			if sel.Sel.Name != "With" {
				seen = slices.Clone(begins)
			}
			for i := at; i < len(call.Args); i += 2 {
				key, ok := call.Args[i].(*ast.BasicLit)
				if !ok {
					break // a slice of attributes
				}
				name, _ := strconv.Unquote(key.Value)
				if slices.Contains(seen, name) {
					t.Errorf("%s: the key %q is there already", files.Position(key.Pos()), name)
				}
				seen = append(seen, name)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lines < 200 {
		t.Fatalf("found only %d calls of loggers", lines)
	}
}

// logs says whether an expression is called as loggers are.
func logs(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "log" || x.Name == "slog"
	case *ast.SelectorExpr:
		return strings.EqualFold(x.Sel.Name, "log")
	case *ast.CallExpr:
		sel, ok := x.Fun.(*ast.SelectorExpr)
		return ok && sel.Sel.Name == "log"
	}
	return false
}
