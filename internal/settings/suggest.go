package settings

import "star/internal/suggest"

// Nearest returns the candidate that was probably meant by a mistyped word, or
// an empty text.
func Nearest(word string, candidates []string) string { return suggest.Nearest(word, candidates) }

// meant is the tail of an error message.
func meant(word string, candidates []string, prefix string) string {
	if n := Nearest(word, candidates); n != "" {
		return "; did you mean " + prefix + n + "?"
	}
	return ""
}
