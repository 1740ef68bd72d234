package cli

import (
	"slices"
	"strings"

	"star/internal/exitcode"
	"star/modes/baseline"
)

// Dash is s, or a dash in place of an empty one.
func Dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}

// SimBaselines joins the parts of a list of names with settings that was split at its commas: of a:k=1,l=2,x=3,b, k and
// l are settings of a.
func SimBaselines(list []string) []string {
	var names []string
	for _, part := range list {
		key, _, has := strings.Cut(part, "=")
		// of shares, of workers
		if len(names) > 0 && (has && isSetting(names[len(names)-1], key) || part != "" && part[0] >= '0' && part[0] <= '9') {
			names[len(names)-1] += "," + part
			continue
		}
		names = append(names, part)
	}
	return names
}

// isSetting reports whether the baseline of method, which has settings, knows key.
func isSetting(method, key string) bool {
	name, _, given := strings.Cut(method, ":")
	for _, e := range baseline.Entries() {
		if given && e.Name == name {
			return slices.ContainsFunc(e.Settings, func(s baseline.Setting) bool { return s.Name == key })
		}
	}
	return false
}

// Unavailable is the error Err of a service or an engine that cannot be reached.
type Unavailable struct{ Err error }

// Error is the text of Err.
func (u Unavailable) Error() string { return u.Err.Error() }

// ExitCode is exitcode.Lost.
func (Unavailable) ExitCode() int { return exitcode.Lost }
