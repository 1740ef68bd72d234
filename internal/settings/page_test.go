package settings

import (
	"fmt"
	"strings"
	"testing"

	"star/internal/generated"
)

// docs/configure.md has every setting with its default, as it is declared.
func TestPage(t *testing.T) {
	generated.Section(t, "../../docs/configure.md", "settings", "go test ./internal/settings -run TestPage -write", table())
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
			help += " (" + strings.Join(named(it.choices), ", ") + ")"
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
