package blossom

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func contains(err error, what string) bool { return err != nil && strings.Contains(err.Error(), what) }

func TestParse(t *testing.T) {
	names, edges, err := Parse([]byte("# jobs\n\n7 3 2.5 # tail\r\n\t3 1000000000000 -1e-3\n1 3 4"))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(names, edges), "[1 3 7 1000000000000] [{2 1 2.5} {1 3 -0.001} {0 1 4}]"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	for text, want := range map[string]string{
		"0 1":                               "line 1: 2 words; want \"u v weight\"",
		"0 1 2 3":                           "line 1: 4 words",
		"0 1 2\n\n0 x 1":                    "line 3: \"x\" is no vertex",
		"0 -1 1":                            "\"-1\" is no vertex",
		"0 1.5 1":                           "\"1.5\" is no vertex",
		"0 9223372036854775808 1":           "is no vertex",
		"0 1 nan":                           "\"nan\" is no weight; want a finite number",
		"0 1 -Inf":                          "\"-Inf\" is no weight",
		"0 1 1e999":                         "\"1e999\" is no weight",
		"0 1 heavy":                         "\"heavy\" is no weight",
		"4 4 1":                             "vertex 4 is joined to itself",
		"0 1 1\n# \n1 0 2":                  "line 3: 1 and 0 are joined by line 1 already",
		strings.Repeat("x", 1<<16):          "line 1: 1 words",
		"0 1 " + strings.Repeat("x", 1<<16): "is no weight",
	} {
		if _, _, err := Parse([]byte(text)); !errors.Is(err, ErrEdges) || !contains(err, want) || len(err.Error()) > 200 {
			t.Errorf("%.40q: %v; want %q", text, err, want)
		}
	}
}

// Whatever Parse takes can be matched and written, and reads the same again.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"", "0 1 2.5\n1 2 3\n", "# a\n7 3 -1e-3 # b\r\n", "0 1 nan", "1 1 1", "0 1 1\n1 0 1", "0 1 0x1p-1074\n1 2 1e308"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		names, edges, err := Parse(text)
		if err != nil {
			if !errors.Is(err, ErrEdges) || names != nil || edges != nil {
				t.Fatalf("%v, %v, %v", names, edges, err)
			}
			return
		}
		var written []byte
		for _, e := range edges {
			written = e.AppendTo(written, names)
		}
		again, same, err := Parse(written)
		if err != nil || !reflect.DeepEqual(again, names) || !reflect.DeepEqual(same, edges) {
			t.Fatalf("%q is written as %q and read as %v %v, %v", text, written, again, same, err)
		}
		for _, o := range []Option{0, MaxCardinality} {
			m, err := Solve(len(names), edges, o)
			if err == nil {
				err = Verify(len(names), edges, m, o)
			}
			if err != nil {
				t.Fatalf("%q: %v", text, err)
			}
		}
	})
}
