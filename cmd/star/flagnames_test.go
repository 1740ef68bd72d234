package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	chaos "star/cmd/internal/chaos/command"
	"star/cmd/internal/daemon"
)

// A setting that a message names in parentheses, as in "(--join-timeout)", is a flag of one of the programs.
func TestFlagsInMessages(t *testing.T) {
	flags := map[string]bool{}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		add := func(f *pflag.Flag) { flags[f.Name] = true }
		c.Flags().VisitAll(add)
		c.PersistentFlags().VisitAll(add)
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	for _, c := range []*cobra.Command{root(), daemon.Server("star-ps"), daemon.Worker("star-worker"), chaos.New()} {
		visit(c)
	}
	named := regexp.MustCompile(`\(--([A-Za-z][A-Za-z-]*)`)
	found := 0
	for _, file := range tracked(t, "*.go") {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, filepath.Join(repository, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return true
			}
			for _, m := range named.FindAllStringSubmatch(l.Value, -1) {
				if found++; !flags[m[1]] {
					t.Errorf("%s:%d: no program has a flag --%s: %s", file, fset.Position(l.Pos()).Line, m[1], l.Value)
				}
			}
			return true
		})
	}
	if found < 50 {
		t.Errorf("found %d settings in messages", found)
	}
}
