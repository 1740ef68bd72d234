package combinations

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/combinations.md")

// page is docs/combinations.md.
func page() string {
	var b strings.Builder
	b.WriteString(`# Combinations of features

Which features a job cannot have together; all others combine.
Numbers are rows of the table.
` + "`go test ./job/combinations -update`" + ` writes this page from the table that checks jobs; tests compare the two, and train a small job for each allowed pair of architecture, copies, coordinators, codecs, baselines, trees and TLS.

`)
	for i, n := range names {
		var rows []string
		for row, r := range Refusals {
			if slices.Contains(r.Of, Feature(i)) {
				rows = append(rows, fmt.Sprint(row+1))
			}
		}
		if rows != nil {
			fmt.Fprintf(&b, "- **%s**: %s (%s)\n", n.Short, n.Long, strings.Join(rows, ", "))
		}
	}
	b.WriteString("\n| | rejected together | why | instead |\n|---|---|---|---|\n")
	for i, r := range Refusals {
		var of []string
		for _, f := range r.Of {
			of = append(of, f.String())
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", i+1, strings.Join(of, ", "), r.Why, r.Instead)
	}
	return b.String()
}

// TestPage compares docs/combinations.md with the table.
func TestPage(t *testing.T) {
	const file = "../../docs/combinations.md"
	want := page()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s differs from the table: go test ./job/combinations -update", file)
	}
}

// TestRefusals checks that each refusal has a setting, a reason and an alternative, and that no earlier one hides it.
func TestRefusals(t *testing.T) {
	for i := range Refusals {
		r := &Refusals[i]
		if r.Setting == "" || r.Why == "" || r.Instead == "" || len(r.Of) < 2 {
			t.Errorf("refusal %d lacks something: %+v", i+1, r)
		}
		if got := Check(Of(r.Of...)); got != r {
			t.Errorf("%v: %v, want %v", r.Of, got, r)
		}
		for _, f := range r.Of {
			if got := Check(Of(r.Of...) &^ Of(f)); got != nil && len(got.Of) >= len(r.Of) {
				t.Errorf("without %v: %v", f, got)
			}
		}
	}
	for f := range numFeatures {
		if names[f].Short == "" || names[f].Long == "" {
			t.Errorf("feature %d has no name", f)
		}
		if r := Check(Of(f)); r != nil {
			t.Errorf("%v alone: %v", f, r)
		}
	}
}
