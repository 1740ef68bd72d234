// Notices writes NOTICE and docs/third-party-licences.txt: which modules are linked
// into the programs, the holders of the copyright, and the text of each licence.
// Most of these licences ask that the text goes along with the program.
//
//	go run ./.ci/notices           write both files
//	go run ./.ci/notices --check   fail if they are not what it would write
//
// Linked is what go list says for the platforms that we promise, without cgo, and for
// Linux with it. The texts are those in the module cache and, for Go's own library, in GOROOT.
package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	noticeFile  = "NOTICE"
	licenceFile = "docs/third-party-licences.txt"
)

// elsewhere are licences that do not lie beside or above what they are for: the
// Go fonts are linked as Go code, their terms lie beside the font files. Of FreeType's two
// licences this is the one that we choose.
var elsewhere = map[string]string{"golang.org/x/image": "font/gofont/ttfs/README", "github.com/golang/freetype": "licenses/ftl.txt"}

// headers are C headers with terms of their own: their first comment that speaks of a
// copyright is to go along.
var headers = map[string]string{"github.com/NVIDIA/go-nvml": "pkg/nvml/nvml.h"}

// platforms are those of .ci/run, those with cgo, and star-bucket, a module of its own that links the same modules on
// each.
var platforms = []string{"linux/amd64", "linux/arm64", "darwin/arm64", "linux/amd64/cgo", "linux/arm64/cgo", "linux/amd64/star-bucket"}

func main() {
	check := flag.Bool("check", false, "write nothing; fail if a file is not up to date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "notices:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	root, err := output([]string{"GOWORK=off"}, "go", "list", "-m", "-f", "{{.Dir}}")
	if err != nil {
		return err
	}
	if err := os.Chdir(strings.TrimSpace(string(root))); err != nil {
		return err
	}
	parts, err := linked()
	if err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		text []byte
	}{{noticeFile, notice(parts)}, {licenceFile, licences(parts)}} {
		if !check {
			if err := os.WriteFile(f.name, f.text, 0o666); err != nil {
				return err
			}
			continue
		}
		have, err := os.ReadFile(f.name)
		if err != nil {
			return err
		}
		if !bytes.Equal(have, f.text) {
			return fmt.Errorf("%s is not up to date: the linked modules or their licences have changed; run: go run ./.ci/notices", f.name)
		}
	}
	return nil
}

// part is one module, or Go itself.
type part struct {
	name, version string
	licences      []text // at least one
	notices       []text
}

// text is a file of a module.
type text struct {
	place string // from the module's root, with slashes
	body  string
}

// linked lists what is linked into the programs, by name.
func linked() ([]part, error) {
	type module struct{ path, version, dir string }
	dirs := map[module]map[string]bool{} // folders of linked packages
	for _, p := range platforms {
		goos, goarch, _ := strings.Cut(p, "/")
		goarch, cgo := strings.CutSuffix(goarch, "/cgo")
		goarch, bucket := strings.CutSuffix(goarch, "/star-bucket")
		enabled := "CGO_ENABLED=0"
		if cgo {
			enabled = "CGO_ENABLED=1"
		}
		env := []string{enabled, "GOOS=" + goos, "GOARCH=" + goarch, "GOFLAGS=-mod=readonly"}
		list := []string{"list", "-deps", "-json=Dir,Module", "./cmd/star", "./cmd/star-ps", "./cmd/star-worker", "./cmd/star-chaos"}
		if bucket {
			list = []string{"-C", "cmd/star-bucket", "list", "-deps", "-json=Dir,Module", "."}
		}
		out, err := output(env, "go", list...)
		if err != nil {
			return nil, err
		}
		dec := json.NewDecoder(bytes.NewReader(out))
		for {
			var pkg struct {
				Dir    string
				Module *struct {
					Path, Version, Dir string
					Main               bool
					Replace            *struct{}
				}
			}
			if err := dec.Decode(&pkg); err == io.EOF {
				break
			} else if err != nil {
				return nil, err
			}
			if pkg.Module == nil || pkg.Module.Main || pkg.Module.Replace != nil {
				continue
			}
			m := module{pkg.Module.Path, pkg.Module.Version, pkg.Module.Dir}
			if dirs[m] == nil {
				dirs[m] = map[string]bool{}
			}
			for d := pkg.Dir; strings.HasPrefix(d, m.dir); d = filepath.Dir(d) {
				dirs[m][d] = true
			}
		}
	}
	goroot, err := output(nil, "go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	dir := strings.TrimSpace(string(goroot))
	dirs[module{"Go", "", dir}] = map[string]bool{dir: true}

	var parts []part
	for m, folders := range dirs {
		name := m.path
		p := part{name: name, version: m.version}
		for d := range folders {
			entries, err := os.ReadDir(d)
			if err != nil {
				return nil, err
			}
			for _, e := range entries {
				upper := strings.ToUpper(e.Name())
				licence := strings.HasPrefix(upper, "LICEN") || strings.HasPrefix(upper, "COPYING")
				note := strings.HasPrefix(upper, "NOTICE")
				if e.IsDir() || !licence && !note || strings.HasSuffix(upper, ".GO") {
					continue
				}
				body, err := os.ReadFile(filepath.Join(d, e.Name()))
				if err != nil {
					return nil, err
				}
				rel, err := filepath.Rel(m.dir, filepath.Join(d, e.Name()))
				if err != nil {
					return nil, err
				}
				t := text{filepath.ToSlash(rel), tidy(string(body))}
				if licence {
					p.licences = append(p.licences, t)
				} else {
					p.notices = append(p.notices, t)
				}
			}
		}
		if place := elsewhere[name]; place != "" {
			body, err := os.ReadFile(filepath.Join(m.dir, filepath.FromSlash(place)))
			if err != nil {
				return nil, err
			}
			p.licences = append(p.licences, text{place, tidy(string(body))})
		}
		if place := headers[name]; place != "" {
			body, err := os.ReadFile(filepath.Join(m.dir, filepath.FromSlash(place)))
			if err != nil {
				return nil, err
			}
			terms := firstComment(string(body))
			if terms == "" {
				return nil, fmt.Errorf("module %s: %s has no comment with its terms any more", name, place)
			}
			p.notices = append(p.notices, text{place, tidy(terms)})
		}
		if len(p.licences) == 0 {
			return nil, fmt.Errorf("module %s has no licence in %s: do not link it", name, m.dir)
		}
		byPlace := func(a, b text) int { return strings.Compare(a.place, b.place) }
		slices.SortFunc(p.licences, byPlace)
		slices.SortFunc(p.notices, byPlace)
		for _, l := range p.licences {
			if len(kinds(l.body)) == 0 {
				return nil, fmt.Errorf("module %s: %s is no licence that this program knows: read it, and teach kinds", name, l.place)
			}
		}
		parts = append(parts, p)
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(strings.Compare(a.name, b.name), strings.Compare(a.version, b.version))
	})
	return parts, nil
}

// tidy makes texts comparable: no carriage returns, no space at line ends or at
// the end.
func tidy(s string) string {
	var b strings.Builder
	for line := range strings.Lines(strings.ReplaceAll(s, "\r\n", "\n")) {
		b.WriteString(strings.TrimRight(line, " \t\n") + "\n")
	}
	return strings.Trim(b.String(), "\n") + "\n"
}

// firstComment is the first comment of a C file that speaks of a copyright, without
// its stars.
func firstComment(c string) string {
	for {
		_, after, ok := strings.Cut(c, "/*")
		comment, rest, closed := strings.Cut(after, "*/")
		if !ok || !closed {
			return ""
		}
		c = rest
		if !strings.Contains(comment, "Copyright") {
			continue
		}
		var b strings.Builder
		for line := range strings.Lines(comment) {
			b.WriteString(strings.TrimPrefix(strings.TrimPrefix(strings.TrimLeft(line, " \t"), "*"), " "))
		}
		return b.String()
	}
}

// kinds are the SPDX names of the licences that a text contains.
func kinds(body string) []string {
	words := strings.Join(strings.Fields(body), " ")
	var out []string
	if strings.Contains(words, "Apache License") && strings.Contains(words, "Version 2.0") {
		out = append(out, "Apache-2.0")
	}
	if strings.Contains(words, "Redistribution and use in source and binary forms") {
		if strings.Contains(words, "Neither the name") || strings.Contains(words, "The names of its contributors may not") {
			out = append(out, "BSD-3-Clause")
		} else {
			out = append(out, "BSD-2-Clause")
		}
	}
	if strings.Contains(words, "Permission is hereby granted, free of charge") && !strings.Contains(words, "SIL Open Font License") {
		out = append(out, "MIT")
	}
	for text, name := range map[string]string{
		"Creative Commons Attribution 4.0 International Public License": "CC-BY-4.0",
		"creativecommons.org/licenses/by/4.0":                           "CC-BY-4.0",
		"SIL OPEN FONT LICENSE Version 1.1":                             "OFL-1.1",
		"The FreeType License":                                          "FTL",
		"Mozilla Public License, version 2.0":                           "MPL-2.0",
		"Mozilla Public License Version 2.0":                            "MPL-2.0",
		"The FreeType Project LICENSE":                                  "FTL",
	} {
		if strings.Contains(words, text) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

var copyright = regexp.MustCompile(`(?i)^[\s/#*"-]*(Copyright\s+(\(c\)\s*|©\s*)?(\d{4}|by\s|the\s|IBM Corp).*)$`)

// holders are the copyright lines of a part.
func holders(p part) []string {
	var out []string
	for _, t := range slices.Concat(p.licences, p.notices) {
		for line := range strings.Lines(t.body) {
			m := copyright.FindStringSubmatch(strings.TrimRight(line, "\n"))
			if m == nil || strings.Contains(line, "[yyyy]") || strings.Contains(line, "{yyyy}") {
				continue
			}
			if c := strings.TrimSpace(m[1]); !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	return out
}

func notice(parts []part) []byte {
	var b bytes.Buffer
	b.WriteString(`STAR
Copyright 2026 The STAR authors

Licensed under the Apache License, Version 2.0 (see LICENSE).

The programs star, star-ps, star-worker, star-chaos and star-bucket contain the software below, by others and under licences of
its own. The texts of these licences are in docs/third-party-licences.txt. Distribute this file and that one together
with the programs. Both are written by: go run ./.ci/notices

`)
	for _, p := range parts {
		var ks []string
		for _, l := range p.licences {
			for _, k := range kinds(l.body) {
				if !slices.Contains(ks, k) {
					ks = append(ks, k)
				}
			}
		}
		if p.version == "" {
			fmt.Fprintf(&b, "%s (its standard library and runtime)\n", p.name)
		} else {
			fmt.Fprintf(&b, "%s %s\n", p.name, p.version)
		}
		fmt.Fprintf(&b, "    %s\n", strings.Join(ks, ", "))
		hs := holders(p)
		const many = 6
		for i, h := range hs {
			if i == many {
				fmt.Fprintf(&b, "    and others, named in the text of its licence\n")
				break
			}
			fmt.Fprintf(&b, "    %s\n", h)
		}
		if len(hs) == 0 {
			b.WriteString("    Copyright: its authors; its licence names none\n")
		}
	}
	for _, p := range parts {
		for _, n := range p.notices {
			fmt.Fprintf(&b, "\n%s\nThe file %s of %s says:\n\n%s", strings.Repeat("-", 80), n.place, p.name, n.body)
		}
	}
	return b.Bytes()
}

func licences(parts []part) []byte {
	var b bytes.Buffer
	b.WriteString("The licences of what is linked into star, star-ps, star-worker, star-chaos and star-bucket besides STAR itself (NOTICE lists it).\n" +
		"Equal texts are given once. Written by: go run ./.ci/notices\n")
	users := map[string][]string{}
	var order []string
	for _, p := range parts {
		for _, l := range p.licences {
			if users[l.body] == nil {
				order = append(order, l.body)
			}
			user := strings.TrimSpace(p.name + " " + p.version)
			if strings.Contains(l.place, "/") {
				user += ", in " + l.place[:strings.LastIndex(l.place, "/")]
			}
			users[l.body] = append(users[l.body], user)
		}
	}
	for _, body := range order {
		fmt.Fprintf(&b, "\n%[1]s\n%[2]s\n%[1]s\n\n%[3]s", strings.Repeat("=", 80), strings.Join(users[body], "\n"), body)
	}
	return b.Bytes()
}

// output runs a command and returns what it prints.
func output(env []string, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	if x, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, x.Stderr)
	}
	return out, err
}
