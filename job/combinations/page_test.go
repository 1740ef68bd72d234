package combinations

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/combinations.md anew")

const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh"

// page is docs/combinations.md.
func page() string {
	var b strings.Builder
	b.WriteString(`# What goes together

Written by ` + "`go test ./job/combinations -update`" + ` from the table by which jobs are checked (` + "`job/combinations`" + `).
A cell says whether a job can have both: · yes; a number: no, with the reason below. What the table does not name goes together with everything,
TLS (` + "`--tls-cert`" + `) for one.
A test makes a configuration of every cell and holds the check against the table; another one trains a small job for all pairs of architecture, copies, coordinators, codecs, baselines, trees and TLS that are allowed.

`)
	for i, n := range names {
		fmt.Fprintf(&b, "- **%s** (%c): %s\n", n.Short, letters[i], n.Long)
	}
	b.WriteString("\n| |")
	for f := range numFeatures {
		fmt.Fprintf(&b, " %c |", letters[f])
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", int(numFeatures)) + "\n")
	for f := range numFeatures {
		fmt.Fprintf(&b, "| %v |", f)
		for g := range numFeatures {
			mark := "·"
			if f == g {
				mark = " "
			} else if i := slices.IndexFunc(Refusals, func(r Refusal) bool { return len(r.Of) == 2 && Of(f, g) == Of(r.Of...) }); i >= 0 {
				mark = fmt.Sprint(i + 1)
			}
			fmt.Fprintf(&b, " %s |", mark)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n| | not together | why | instead |\n|---|---|---|---|\n")
	for i, r := range Refusals {
		var of []string
		for _, f := range r.Of {
			of = append(of, f.String())
		}
		fmt.Fprintf(&b, "| %d | %s | %s | %s |\n", i+1, strings.Join(of, ", "), r.Why, r.Instead)
	}
	return b.String()
}

// docs/combinations.md is what the table says.
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
		t.Errorf("%s is not what the table says: go test ./job/combinations -update", file)
	}
}

// Each refusal names a setting, a reason and a way out, and can happen: no other one is said in its place.
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
