package star_test

import (
	"bufio"
	"bytes"
	"fmt"
	"go/ast"
	"go/doc"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// public are the packages that programs of others import.
var public = []string{"star/worker", "star/server", "star/worker/launch", "star/train", "star/job"}

// lent are packages that are not public although the API of a public package has types of them, with the reason.
var lent = map[string]string{
	"star/coord":                    "what a job says of itself: Status, errors of a job's end",
	"star/coord/advice":             "what a pilot answers (server.Pilot)",
	"star/coord/session":            "what a member was told to train (Told)",
	"star/modes/baseline":           "schemes of other papers",
	"star/cluster/resource/actuate": "the limits of a process that enters a cluster (worker.Tenant)",
	"star/runlog":                   "the result of a job, and lines of its log",
	"star/transport":                "the network, and errors of peers",
}

// exported finds the named types that the API of a package shows: of exported constants, variables, functions, types,
// their exported fields and methods.
func exported(pkg *types.Package, found func(where string, n *types.TypeName)) {
	seen := map[types.Type]bool{}
	var walk func(where string, t types.Type)
	tuple := func(where string, t *types.Tuple) {
		for i := range t.Len() {
			walk(where, t.At(i).Type())
		}
	}
	walk = func(where string, t types.Type) {
		switch t := t.(type) {
		case *types.Alias:
			walk(where, types.Unalias(t))
		case *types.Named:
			if t.Obj().Pkg() != nil {
				found(where, t.Obj())
			}
			for i := range t.TypeArgs().Len() {
				walk(where, t.TypeArgs().At(i))
			}
		case *types.Pointer:
			walk(where, t.Elem())
		case *types.Slice:
			walk(where, t.Elem())
		case *types.Array:
			walk(where, t.Elem())
		case *types.Chan:
			walk(where, t.Elem())
		case *types.Map:
			walk(where, t.Key())
			walk(where, t.Elem())
		case *types.Signature:
			tuple(where, t.Params())
			tuple(where, t.Results())
		case *types.Struct:
			for i := range t.NumFields() {
				if f := t.Field(i); f.Exported() {
					walk(where+"."+f.Name(), f.Type())
				}
			}
		case *types.Interface:
			if seen[t] {
				return
			}
			seen[t] = true
			for i := range t.NumMethods() {
				walk(where+"."+t.Method(i).Name(), t.Method(i).Type())
			}
		}
	}
	for _, name := range pkg.Scope().Names() {
		o := pkg.Scope().Lookup(name)
		if !o.Exported() {
			continue
		}
		walk(name, o.Type())
		if n, ok := types.Unalias(o.Type()).(*types.Named); ok && n.Obj() == o {
			walk(name, n.Underlying())
			for i := range n.NumMethods() {
				if m := n.Method(i); m.Exported() {
					walk(name+"."+m.Name(), m.Type())
				}
			}
		}
	}
}

// The API of a public package has types of public packages, and of the packages that are listed, but none of a package
// that others cannot import.
func TestAPI(t *testing.T) {
	out, err := exec.Command("go", append([]string{"list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}"}, public...)...).Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	files := map[string]string{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		path, file, _ := strings.Cut(s.Text(), " ")
		files[path] = file
	}
	imp := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		if files[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(files[path])
	})
	used, shown := map[string]bool{}, 0
	for _, path := range public {
		pkg, err := imp.Import(path)
		if err != nil {
			t.Fatal(err)
		}
		exported(pkg, func(where string, n *types.TypeName) {
			shown++
			of := n.Pkg().Path()
			isPublic := false
			for _, p := range public {
				isPublic = isPublic || of == p || strings.HasPrefix(of, p+"/")
			}
			if !ours(of) || isPublic {
				return
			}
			used[of] = true
			if lent[of] == "" || strings.Contains(of, "internal/") {
				t.Errorf("%s.%s shows %s.%s, which is of no public package: say it with a type that is, or list it here with the reason", path, where, of, n.Name())
			}
		})
	}
	if shown < 100 {
		t.Errorf("only %d types were seen", shown)
	}
	for room := range lent {
		if !used[room] {
			t.Errorf("no API has a type of %s: the list is old", room)
		}
	}
}

// Each public package has an example that go test runs: one with an output. So have the parts that are worth reading
// alone.
func TestExamples(t *testing.T) {
	for _, path := range append(slices.Clone(public), "star/ps", "star/straggler", "star/pgns", "star/sim") {
		names, err := filepath.Glob(filepath.Join(filepath.FromSlash(strings.TrimPrefix(path, "star/")), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var files []*ast.File
		for _, name := range names {
			f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			files = append(files, f)
		}
		if !slices.ContainsFunc(doc.Examples(files...), func(e *doc.Example) bool { return e.Output != "" }) {
			t.Errorf("%s has no Example with an output", path)
		}
	}
}
