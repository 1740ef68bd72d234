package export

import (
	"encoding/json"
	"strconv"
)

// appendQuoted writes a text as JSON. Texts of a run log may come from anywhere: what could end a script in a page is escaped.
func appendQuoted(b []byte, s string) []byte {
	plain := true
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' || c == '<' || c == '>' || c == '&' {
			plain = false
			break
		}
	}
	if plain {
		return append(append(append(b, '"'), s...), '"')
	}
	text, err := json.Marshal(s)
	if err != nil { // a string always has a form
		return strconv.AppendQuote(b, s)
	}
	return append(b, text...)
}
