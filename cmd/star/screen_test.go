package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
)

func TestTableFitsTheTerminal(t *testing.T) {
	all := []string{"head", "0", "1", "2", "3"}
	for height, want := range map[int][]string{
		0:  all, // not known
		9:  all,
		7:  all,
		6:  {"head", "0", "1", "  … 2 more"},
		4:  {"head", "  … 4 more"},
		1:  {"head", "  … 4 more"},
		-1: all,
	} {
		if got := fit(slices.Clone(all), height); !slices.Equal(got, want) {
			t.Errorf("height %d: %q, want %q", height, got, want)
		}
	}
}

// What peers choose cannot pass for lines of others, or move the cursor.
func TestLinesAreOneLineEach(t *testing.T) {
	for _, asJSON := range []bool{false, true} {
		var b bytes.Buffer
		s := &screen{w: &b, json: asJSON}
		s.say("ps 0", `{"msg":"a"}`)
		s.say("ps 0", "star: b")
		if got := strings.Count(b.String(), "\n"); got != 2 {
			t.Errorf("two lines became %d: %q", got, b.String())
		}
		if asJSON != strings.HasPrefix(b.String(), `{"msg":"a"}`) {
			t.Errorf("json %v: %q", asJSON, b.String())
		}
	}
}
