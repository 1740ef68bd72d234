package transport

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// What follows elsewhere from a reason is one line of limited length.
func TestBrief(t *testing.T) {
	long := "the settings of the optimizer were changed: " + strings.Repeat("{'lr': 0.1} ", 40)
	for _, c := range [][2]string{
		{"", ""},
		{"killed", "killed"},
		{"the program failed: Traceback (most recent call last):\n  File\n\nValueError: x\n", "the program failed: ValueError: x"},
		{"one\ntwo", "onetwo"},
		{long, long[:398] + " …"},
		{strings.Repeat("é", 300), strings.Repeat("é", 200) + " …"},
		{"x" + strings.Repeat("é", 300), "x" + strings.Repeat("é", 199) + " …"},
	} {
		got := Brief(c[0])
		if got != c[1] || !utf8.ValidString(got) || len(got) > briefLength+len(" …") {
			t.Errorf("%q: %q, want %q", c[0], got, c[1])
		}
	}
}
