// Package build has a program's own version, and the commit that it was built from. Connections, run logs, checkpoints, queues, the link
// and star version get them from here.
package build

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Program is the name and version of all programs.
const Program = "star 0.1.0"

// Unknown is the commit of a program that was not built in a checkout.
const Unknown = "unknown"

// Info describes a program.
type Info struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`   // empty: the program was not built in a checkout
	Modified bool   `json:"modified,omitempty"` // the checkout had other changes
	Time     string `json:"time,omitempty"`     // of the commit
	Go       string `json:"go"`
	System   string `json:"system"` // linux/amd64
}

// Commit is the commit that this program was built from, with "+changes" behind it if the checkout had others, or [Unknown].
func Commit() string { return commit() }

var commit = sync.OnceValue(func() string { return Built().commit() })

func (b Info) commit() string {
	commit := cmp.Or(b.Commit, Unknown)
	if b.Modified {
		commit += "+changes"
	}
	return commit
}

// Built is this program, as Go noted when it was built.
func Built() Info {
	b := Info{Version: strings.TrimPrefix(Program, "star "), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH}
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

func (b Info) String() string {
	commit := "commit not known"
	if b.Commit != "" {
		commit = "commit " + b.Commit[:min(len(b.Commit), 12)]
		if b.Modified {
			commit += " with changes"
		}
	}
	return fmt.Sprintf("%s (%s, %s, %s)", b.Version, commit, b.Go, b.System)
}
