package settings

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write the table of docs/configure.md")

// docs/configure.md has every setting with its default, as it is declared.
func TestPage(t *testing.T) {
	const (
		page  = "../../docs/configure.md"
		begin = "<!-- settings: begin (written by go test ./internal/settings -run TestPage -write) -->\n"
		end   = "<!-- settings: end -->\n"
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
	want := before + begin + "\n" + table() + "\n" + end + after
	if *write {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if want != string(text) {
		t.Errorf("%s is not what is declared: go test ./internal/settings -run TestPage -write", page)
	}
}

// table has a row for each setting.
func table() string {
	var run, server Job
	run.declare(ForRun)
	server.declare(ForServer)
	var b strings.Builder
	b.WriteString("| setting | default | meaning |\n|---|---|---|\n")
	for i, it := range run.Config.items {
		help := it.help
		if len(it.choices) > 0 {
			help += ": " + strings.Join(it.choices, ", ")
		}
		def := value(it)
		if other := value(server.Config.items[i]); other != def {
			def += "; star-ps: " + other
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", it.name, def, strings.ReplaceAll(help, "|", "\\|"))
	}
	return b.String()
}

// value is a setting's default, or nothing where it is empty: then its help says what that means.
func value(it *item) string {
	if d := it.def(); d != "" {
		return "`" + d + "`"
	}
	return ""
}
