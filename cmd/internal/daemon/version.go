package daemon

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"star/member"
)

// Build is what is known of a program.
type Build struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`   // empty: the program was not built in a checkout
	Modified bool   `json:"modified,omitempty"` // the checkout had other changes
	Time     string `json:"time,omitempty"`     // of the commit
	Go       string `json:"go"`
	System   string `json:"system"` // linux/amd64
}

// Built is this program, as Go noted when it was built.
func Built() Build {
	b := Build{Version: strings.TrimPrefix(member.Program, "star "), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		case "vcs.time":
			b.Time = s.Value
		}
	}
	return b
}

func (b Build) String() string {
	commit := "commit not known"
	if b.Commit != "" {
		commit = "commit " + b.Commit[:min(len(b.Commit), 12)]
		if b.Modified {
			commit += " with changes"
		}
	}
	return fmt.Sprintf("%s (%s, %s, %s)", b.Version, commit, b.Go, b.System)
}
