// Package build has the version of the program and the commit that it was built from. Connections, run logs,
// checkpoints, queues, the link and star version take them from here.
package build

import (
	"cmp"
	"fmt"
	"regexp"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
)

// Program is the name and version of all programs.
const Program = "star 0.1.0"

// Unknown is the commit of a program with no commit recorded in its build.
const Unknown = "unknown"

// Set by the linker, where Go records no commit of its own (make release, builds in a git worktree):
//
//	go build -ldflags "-X star/internal/build.linkedCommit=HASH[+changes] -X star/internal/build.linkedTime=RFC3339"
var linkedCommit, linkedTime string

// Info is what is known of a program.
type Info struct {
	Version  string `json:"version"`
	Module   string `json:"module,omitempty"`   // version of the Go module: a tag or pseudo-version; empty: not recorded
	Commit   string `json:"commit,omitempty"`   // empty: the build did not record it
	Modified bool   `json:"modified,omitempty"` // the checkout had other changes
	Time     string `json:"time,omitempty"`     // of the commit
	Go       string `json:"go"`
	System   string `json:"system"` // linux/amd64
}

// Commit is the commit that this program was built from, with "+changes" behind it if the checkout had others, or
// [Unknown].
func Commit() string { return commit() }

var commit = sync.OnceValue(func() string { return Built().commit() })

func (b Info) commit() string {
	commit := cmp.Or(b.Commit, Unknown)
	if b.Modified {
		commit += "+changes"
	}
	return commit
}

// Built is this program, as Go and the linker flags recorded when it was built.
func Built() Info {
	info, _ := debug.ReadBuildInfo()
	return from(info, linkedCommit, linkedTime)
}

// pseudoVersion matches the time and commit at the end of a version that Go derived from a commit without a tag.
var pseudoVersion = regexp.MustCompile(`[-.](\d{14})-([0-9a-f]{12})(\+dirty)?$`)

// from prefers linker flags to Go's VCS settings, and these to the commit in a pseudo-version. A nil info is an empty
// one.
func from(info *debug.BuildInfo, commit, committed string) Info {
	b := Info{
		Version: strings.TrimPrefix(Program, "star "), Go: runtime.Version(), System: runtime.GOOS + "/" + runtime.GOARCH,
		Time: committed,
	}
	b.Commit, b.Modified = strings.CutSuffix(commit, "+changes")
	if info == nil {
		return b
	}
	if info.Main.Version != "(devel)" {
		b.Module = info.Main.Version
	}
	if b.Commit != "" {
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
	if m := pseudoVersion.FindStringSubmatch(b.Module); b.Commit == "" && m != nil {
		b.Time = fmt.Sprintf("%s-%s-%sT%s:%s:%sZ", m[1][:4], m[1][4:6], m[1][6:8], m[1][8:10], m[1][10:12], m[1][12:])
		b.Commit, b.Modified = m[2], m[3] != ""
	}
	return b
}

func (b Info) String() string {
	commit := "commit not recorded by the build"
	if b.Commit != "" {
		commit = "commit " + b.Commit[:min(len(b.Commit), 12)]
		if b.Modified {
			commit += " with changes"
		}
	}
	if b.Module != "" {
		commit += ", module " + b.Module
	}
	return fmt.Sprintf("%s (%s, %s, %s)", b.Version, commit, b.Go, b.System)
}
