// Typecheck checks the types of all packages of the module as another system and processor has them, and prints what
// is wrong, without compiling them and all that they import.
//
//	GOOS=darwin GOARCH=arm64 go run ./.ci/typecheck
//
// Of packages of other modules only declarations are checked.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// listed is what go list says of a package.
type listed struct {
	ImportPath, Dir   string
	GoFiles, CgoFiles []string
	ImportMap         map[string]string
	Module            *struct {
		Main      bool
		GoVersion string
	}
	Error *struct{ Err string }
}

// checked has the packages so far, for the one that imports them.
type checked struct {
	all map[string]*types.Package
	of  map[string]string // ImportMap
}

func (c checked) Import(path string) (*types.Package, error) {
	if p := c.all[cmp.Or(c.of[path], path)]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("no package %s", path)
}

func main() {
	wrong, err := run(cmp.Or(os.Getenv("GOARCH"), runtime.GOARCH))
	if err != nil {
		fmt.Fprintln(os.Stderr, "typecheck:", err)
		os.Exit(1)
	}
	for _, e := range wrong {
		fmt.Println(e)
	}
	if len(wrong) > 0 {
		os.Exit(1)
	}
}

// run returns what is wrong.
func run(arch string) (wrong []error, err error) {
	list := exec.Command("go", "list", "-deps", "-json=ImportPath,Dir,GoFiles,CgoFiles,ImportMap,Module,Error", "./...") // imports first
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := list.Start(); err != nil {
		return nil, err
	}
	files := token.NewFileSet()
	all := map[string]*types.Package{"unsafe": types.Unsafe}
	for d := json.NewDecoder(out); ; {
		var p listed
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("cannot read what go list says: %w", err)
		}
		if p.Error != nil {
			wrong = append(wrong, errors.New(p.Error.Err))
		}
		if p.ImportPath == "unsafe" {
			continue
		}
		var parsed []*ast.File
		for _, name := range append(p.GoFiles, p.CgoFiles...) {
			f, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				wrong = append(wrong, err)
				continue
			}
			parsed = append(parsed, f)
		}
		config := types.Config{
			Importer: checked{all, p.ImportMap}, Sizes: types.SizesFor("gc", arch), FakeImportC: true, IgnoreFuncBodies: p.Module == nil || !p.Module.Main,
			Error: func(err error) { wrong = append(wrong, err) },
		}
		if p.Module != nil && p.Module.GoVersion != "" {
			config.GoVersion = "go" + p.Module.GoVersion
		}
		all[p.ImportPath], _ = config.Check(p.ImportPath, files, parsed, nil) // its errors are in wrong
	}
	return wrong, list.Wait()
}
