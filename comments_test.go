package star_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// source is the Go code of this repository, parsed.
type source struct {
	fset     *token.FileSet
	packages map[string]*sourcePackage // by folder and package name
	files    []string                  // all of the repository, with a slash before each
}

type sourcePackage struct {
	dir     string
	files   map[string]*ast.File
	imports map[string]string // import paths by name, of all files
	// names are those of the package: Name, Type.Method and Type.Field.
	names map[string]bool
}

// parseAll returns all Go files, also those of other platforms and modules.
func parseAll(t *testing.T) *source {
	t.Helper()
	s, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var parsed = sync.OnceValues(func() (*source, error) {
	s := &source{fset: token.NewFileSet(), packages: map[string]*sourcePackage{}}
	err := filepath.WalkDir(".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"bin", "dist", ".git", "node_modules"}, d.Name()) {
			return filepath.SkipDir
		}
		s.files = append(s.files, "/"+filepath.ToSlash(name))
		if !strings.HasSuffix(name, ".go") || strings.Contains(name, "testdata") {
			return nil
		}
		f, err := parser.ParseFile(s.fset, name, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		key := path.Dir(name) + " " + f.Name.Name
		p := s.packages[key]
		if p == nil {
			p = &sourcePackage{path.Dir(name), map[string]*ast.File{}, map[string]string{}, map[string]bool{}}
			s.packages[key] = p
		}
		p.files[name] = f
		p.add(f)
		return nil
	})
	return s, err
})

// add takes the imports and declared names of a file.
func (p *sourcePackage) add(f *ast.File) {
	for _, i := range f.Imports {
		imported := strings.Trim(i.Path.Value, `"`)
		name := path.Base(imported)
		if regexp.MustCompile(`^v\d+$`).MatchString(name) {
			name = path.Base(path.Dir(imported))
		}
		if i.Name != nil {
			name = i.Name.Name
		}
		if have := p.imports[name]; have == "" || ours(have) { // where files differ, we do not know which is meant
			p.imports[name] = imported
		}
	}
	fields := func(of string, list *ast.FieldList) {
		if list == nil {
			return
		}
		for _, field := range list.List {
			for _, n := range field.Names {
				p.names[of+"."+n.Name] = true
			}
			if len(field.Names) == 0 {
				p.names[of+"."+base(field.Type)] = true
			}
		}
	}
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				p.names[d.Name.Name] = true
			} else {
				p.names[base(d.Recv.List[0].Type)+"."+d.Name.Name] = true
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				switch spec := spec.(type) {
				case *ast.ValueSpec:
					for _, n := range spec.Names {
						p.names[n.Name] = true
					}
				case *ast.TypeSpec:
					p.names[spec.Name.Name] = true
					switch x := spec.Type.(type) {
					case *ast.StructType:
						fields(spec.Name.Name, x.Fields)
					case *ast.InterfaceType:
						fields(spec.Name.Name, x.Methods)
					}
				}
			}
		}
	}
}

// base is the name of a type, without pointer, package and type parameters.
func base(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return base(e.X)
	case *ast.IndexExpr:
		return base(e.X)
	case *ast.IndexListExpr:
		return base(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// each calls f with every file.
func (s *source) each(f func(p *sourcePackage, name string, file *ast.File)) {
	for _, p := range s.packages {
		for name, file := range p.files {
			f(p, name, file)
		}
	}
}

var (
	// docLink is a name in brackets, which go doc links: Name, Type.Method, or either of these behind a package and a dot.
	docLink = regexp.MustCompile(`(?:^|[\s("'—/-])\[\*?((?:[\w-]+/)*[A-Za-z_]\w*(?:\.[A-Z]\w*){0,2})\](?:[^\w(:\[]|$)`)
	// dotted is such a name without brackets.
	dotted = regexp.MustCompile(`(?:^|[^\w./#\[-])\*?([A-Za-z_]\w*)\.([A-Z]\w*)((?:\.[A-Z]\w*)?)`)
)

// TestNamesInComments looks up every doc link, and every name with a dot that begins with one of our packages or types.
func TestNamesInComments(t *testing.T) {
	s := parseAll(t)
	byName, declared, members, foreign := map[string][]*sourcePackage{}, map[string]bool{}, map[string]bool{}, map[string]bool{}
	for key, p := range s.packages {
		_, name, _ := strings.Cut(key, " ")
		byName[name] = append(byName[name], p)
		for n, imported := range p.imports {
			foreign[n] = foreign[n] || !ours(imported)
		}
		for n := range p.names {
			declared[n] = true
			if _, member, ok := strings.Cut(n, "."); ok {
				members[member] = true
			}
		}
	}
	in := func(packages []*sourcePackage, name string) bool {
		_, member, _ := strings.Cut(name, ".")
		return slices.ContainsFunc(packages, func(p *sourcePackage) bool {
			first, _, _ := strings.Cut(name, ".")
			return p.names[name] || p.names[first] && members[member] // a promoted one
		})
	}
	links := 0
	s.each(func(p *sourcePackage, name string, f *ast.File) {
		own := []*sourcePackage{p}
		if strings.HasSuffix(name, "_test.go") { // also names of the package that it tests
			for _, q := range s.packages {
				if q.dir == p.dir {
					own = append(own, q)
				}
			}
		}
		for _, g := range f.Comments {
			text := g.Text()
			for _, m := range docLink.FindAllStringSubmatch(text, -1) {
				first, rest, isDotted := strings.Cut(m[1], ".")
				imported := p.imports[first]
				if strings.Contains(first, "/") {
					imported = first
				}
				switch {
				case !isDotted && !ast.IsExported(first): // [i], [worker]: an index, or a package
					continue
				case strings.Contains(text, "["+m[1]+"]: http"), imported != "" && !ours(imported):
					continue
				case imported != "":
					var of []*sourcePackage
					for _, q := range s.packages {
						if strings.TrimPrefix(imported+"/", "star/") == strings.TrimPrefix(q.dir+"/", "./") {
							of = append(of, q)
						}
					}
					if in(of, rest) {
						links++
						continue
					}
				case in(own, m[1]):
					links++
					continue
				}
				t.Errorf("%s: [%s] is not declared", s.fset.Position(g.Pos()), m[1])
			}
			for _, m := range dotted.FindAllStringSubmatch(text, -1) {
				first, rest := m[1], m[2]+m[3]
				if i := p.imports[first]; i != "" && !ours(i) || i == "" && foreign[first] {
					continue
				}
				known := true
				switch {
				case byName[first] != nil: // or a variable of that name, and a member
					known = in(byName[first], rest) || members[m[2]]
				case ast.IsExported(first) && declared[first]:
					known = members[m[2]]
				}
				if !known {
					t.Errorf("%s: %s.%s is not declared", s.fset.Position(g.Pos()), first, rest)
				}
			}
		}
	})
	if links < 200 {
		t.Errorf("only %d links were resolved", links)
	}
}

var (
	camelCase = regexp.MustCompile(`(?:^|[^\w./-])([a-z]\w*[a-z][A-Z]\w*)`)
	fileName  = regexp.MustCompile("(?:^|[\\s(`\"'])((?:[\\w.-]+/)*[\\w-]+\\.(?:go|md))\\b")
)

// elsewhereNames are words and files of comments that are not of this repository.
var elsewhereNames = []string{"arXiv", "nvmlClocksEventReasons", "newModel", "aws/credential_cache.go"}

// TestCommentsAreNotLeftBehind finds comments that a rename has left behind: they begin with another name than what
// they document, or have the name of an identifier or a file that does not exist.
func TestCommentsAreNotLeftBehind(t *testing.T) {
	s := parseAll(t)
	words := map[string]bool{}
	for _, word := range elsewhereNames {
		words[word] = true
	}
	word := regexp.MustCompile(`\w+`)
	for _, p := range s.packages {
		for _, f := range p.files {
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.Ident:
					words[n.Name] = true
				case *ast.BasicLit: // flags and keys of JSON
					for _, w := range word.FindAllString(n.Value, -1) {
						words[w] = true
					}
				}
				return true
			})
		}
	}
	begins := func(doc *ast.CommentGroup, name string) {
		first := word.FindString(strings.TrimLeft(doc.Text(), "*"))
		if first != name && (strings.EqualFold(first, name) || camelCase.MatchString(first)) {
			t.Errorf("%s: the comment of %s begins with %s", s.fset.Position(doc.Pos()), name, first)
		}
	}
	s.each(func(p *sourcePackage, name string, f *ast.File) {
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if !strings.HasPrefix(d.Name.Name, "Test") {
					begins(d.Doc, d.Name.Name)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if x, ok := spec.(*ast.TypeSpec); ok {
						doc := x.Doc
						if doc == nil {
							doc = d.Doc
						}
						begins(doc, x.Name.Name)
					}
				}
			}
		}
		for _, g := range f.Comments {
			text := g.Text()
			for _, m := range camelCase.FindAllStringSubmatch(text, -1) {
				if !words[m[1]] {
					t.Errorf("%s: %s is not declared anywhere", s.fset.Position(g.Pos()), m[1])
				}
			}
			for _, m := range fileName.FindAllStringSubmatch(text, -1) {
				if !words[m[1]] && !slices.ContainsFunc(s.files, func(f string) bool { return strings.HasSuffix(f, "/"+m[1]) }) {
					t.Errorf("%s: there is no file %s", s.fset.Position(g.Pos()), m[1])
				}
			}
		}
	})
}

// ordinary are methods of the standard library's interfaces, which need no comment.
var ordinary = []string{"Error", "Unwrap", "Is", "String", "Len", "Less", "Swap", "Push", "Pop", "Read", "Write", "Close", "MarshalJSON", "UnmarshalJSON", "ServeHTTP"}

// TestExportedNamesHaveComments asks for a comment on each exported function, method, type, constant and variable of
// packages that are not internal. A group may have one for all.
func TestExportedNamesHaveComments(t *testing.T) {
	s := parseAll(t)
	s.each(func(p *sourcePackage, name string, f *ast.File) {
		if strings.HasSuffix(name, "_test.go") || f.Name.Name == "main" || strings.Contains("/"+name, "/internal/") {
			return
		}
		missing := func(n *ast.Ident, comments ...*ast.CommentGroup) {
			if n.IsExported() && !slices.ContainsFunc(comments, func(c *ast.CommentGroup) bool { return c != nil }) {
				t.Errorf("%s: %s has no comment", s.fset.Position(n.Pos()), n.Name)
			}
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil || ast.IsExported(base(d.Recv.List[0].Type)) && !slices.Contains(ordinary, d.Name.Name) {
					missing(d.Name, d.Doc)
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					switch x := spec.(type) {
					case *ast.TypeSpec:
						missing(x.Name, d.Doc, x.Doc, x.Comment)
					case *ast.ValueSpec:
						for _, n := range x.Names {
							missing(n, d.Doc, x.Doc, x.Comment)
						}
					}
				}
			}
		}
	})
}
