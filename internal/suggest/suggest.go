// Package suggest finds what a mistyped word was meant to be.
package suggest

import "strings"

// Nearest returns the candidate that was probably meant by a mistyped word, or
// an empty text. Two candidates at the same distance: the first one.
func Nearest(word string, candidates []string) string {
	plain := func(s string) string {
		return strings.ReplaceAll(strings.ToLower(s), "_", "-")
	}
	w := plain(word)
	if w == "" || len(w) > 64 {
		return ""
	}
	best, nearest := 1+(len(w)+1)/4, "" // a quarter of the letters may be wrong, and one more
	for _, c := range candidates {
		p := plain(c)
		if d := distance(w, p); d < best {
			best, nearest = d, c
		}
	}
	if nearest != "" {
		return nearest
	}
	// A word left out: timeout for join-timeout.
	for _, c := range candidates {
		p := plain(c)
		if len(w) >= 3 && (strings.HasPrefix(p, w+"-") || strings.HasSuffix(p, "-"+w) || strings.HasPrefix(w, p+"-")) {
			return c
		}
	}
	return ""
}

// distance counts the insertions, deletions, replacements and swaps of
// adjacent letters that turn a into b (optimal string alignment).
func distance(a, b string) int {
	before, prev := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(prev[j]+1, row[j-1]+1, prev[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, prev = prev, row
	}
	return prev[len(b)]
}
