package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	chaos "star/cmd/internal/chaos/command"
	"star/cmd/internal/cli"
	"star/cmd/internal/daemon"
	"star/cmd/star/ops"
	"star/cmd/tests/jobtest"
	"star/job"
	"star/modes"
	"star/train/net"
)

// fenced returns the lines of the fenced blocks of a page.
func fenced(t *testing.T, page string) (lines []string) {
	t.Helper()
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	inside := false
	for line := range strings.Lines(strings.ReplaceAll(string(b), "\\\n", "")) { // a command may go on in the next line
		switch line = strings.TrimRight(line, "\n"); {
		case strings.HasPrefix(line, "```"):
			inside = !inside
		case inside:
			lines = append(lines, line)
		}
	}
	return lines
}

// command finds a command of ours in a line of a shell: star, star-ps,
// star-worker, or go run ./cmd/star. Comments go, and what follows &, | or --, which
// is another program's. What is indented is a drawing.
func command(line string) (program string, args []string) {
	if strings.HasPrefix(line, " ") {
		return "", nil
	}
	line = strings.TrimPrefix(line, "$ ")
	line, _, _ = strings.Cut(line, "  #")
	quoted := false
	words := strings.FieldsFunc(line, func(r rune) bool { // '…' is one word
		if r == '\'' {
			quoted = !quoted
		}
		return r == ' ' && !quoted
	})
	for i, w := range words {
		words[i] = strings.ReplaceAll(w, "'", "")
	}
	for i, w := range words {
		if slices.Contains([]string{"&", "|", ">", ">>", "--", "…"}, w) {
			words = words[:i]
			break
		}
	}
	for len(words) > 0 && strings.HasPrefix(words[0], "STAR_") && strings.Contains(words[0], "=") {
		words = words[1:]
	}
	if len(words) >= 3 && strings.Join(words[:3], " ") == "go run ./cmd/star" {
		return "star", words[3:]
	}
	if len(words) > 0 && slices.Contains([]string{"star", "star-ps", "star-worker", "star-chaos"}, words[0]) {
		return words[0], words[1:]
	}
	return "", nil
}

// Every command that a page prints is understood by the program: its flags exist
// and their values can be read.
func TestDocumentedCommandsParse(t *testing.T) {
	saved := cli.Environ
	cli.Environ = func() []string { return nil }
	defer func() { cli.Environ = saved }()
	found := 0
	for _, page := range tracked(t, "*.md") {
		for _, line := range fenced(t, filepath.Join(repository, page)) {
			program, args := command(line)
			if program == "" {
				continue
			}
			found++
			if err := try(program, args); err != nil {
				t.Errorf("%s: %q: %v", page, line, err)
			}
		}
	}
	if found < 100 {
		t.Errorf("found %d commands of ours in all pages", found)
	}
}

func try(program string, args []string) error {
	var cmd *cobra.Command
	switch program {
	case "star":
		cmd = root()
	case "star-ps":
		cmd = daemon.Server(program)
	case "star-worker":
		cmd = daemon.Worker(program)
	case "star-chaos":
		cmd = chaos.New()
	}
	found, rest, err := cmd.Find(args)
	if err != nil {
		return err
	}
	var out jobtest.Output
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	at := slices.Index(args, "--") // what follows is a program of the user's own
	if at < 0 {
		at = len(args)
	}
	cmd.SetArgs(slices.Insert(slices.Clone(args), at, "--print-config")) // reads every value, and starts nothing
	if err := cmd.Execute(); err != nil {
		return err
	}
	mode, workers := "", 4
	for line := range strings.Lines(out.String()) {
		switch words := strings.Fields(line); {
		case len(words) > 1 && words[0] == "mode":
			mode = words[1]
		case len(words) > 1 && words[0] == "workers":
			if workers, err = strconv.Atoi(words[1]); err != nil {
				return err
			}
		}
	}
	if found.Name() == "ctl" {
		switch words := found.Flags().Args(); {
		case len(words) == 2 && words[0] == "mode":
			mode = words[1]
		case len(words) == 3 && words[0] == "move":
		case len(words) > 0 && words[0] == "set":
			return ops.CheckVerb(words)
		case len(words) != 1 || !slices.Contains([]string{"status", "checkpoint", "stop"}, words[0]):
			return fmt.Errorf("no such command of star ctl: %q", rest)
		}
	}
	if mode == "" || mode == job.Auto || found.Name() == "sim" { // of star sim they are a list
		return nil
	}
	_, err = modes.Parse(mode, workers)
	return err
}

// The test would be worth nothing if it let mistakes pass.
func TestUndocumentedCommandsDoNotParse(t *testing.T) {
	for _, line := range []string{"star run --epoch 3", "star rnu", "star run --workers many", "star ctl mode y=3", "star ctl halt", "star ctl set gain=1", "star-ps --lr x",
		"go run ./cmd/star bench disk", "$ STAR_LR=0.1 star run --mode x=9"} {
		program, args := command(line)
		if program == "" || try(program, args) == nil {
			t.Errorf("%q passes", line)
		}
	}
}

var (
	duration = regexp.MustCompile(`\b([0-9]+m)?[0-9]+(\.[0-9]+)?(ms|µs|s)\b`)
	number   = regexp.MustCompile(`[0-9]+(\.[0-9]+)?`)
	gemm     = regexp.MustCompile(`gemm=\w+`)
)

// shape is a line with its numbers and what depends on the machine taken out.
func shape(line string) string {
	line = gemm.ReplaceAllString(line, "gemm=G")
	line = duration.ReplaceAllString(line, "D")
	return strings.TrimRight(number.ReplaceAllString(line, "N"), " ")
}

// What README shows of the main job is what the program prints: the summary line
// by line, and each of the log lines that it picks.
func TestReadmeShowsWhatIsPrinted(t *testing.T) {
	jobtest.AboutNumbers(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, jobtest.Star(t), "run", "--listen", "127.0.0.1:0", "--steps", "3")
	cmd.Dir = t.TempDir()
	var out, errs jobtest.Output
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		t.Fatalf("star run: %v\n%s", err, errs.Bytes())
	}
	printed := map[string]bool{}
	for line := range strings.Lines(errs.String()) {
		printed[shape(strings.TrimRight(line, "\n"))] = true
	}
	var summary, want []string
	logs := 0
	for _, line := range fenced(t, "../../README.md") {
		switch {
		case strings.HasPrefix(line, "run      | training"): // every 5 s: not in a short run
		case strings.HasPrefix(line, "ps 0     | straggler"), strings.HasPrefix(line, "ps 0     | mode "), strings.HasPrefix(line, "ps 0     | gain "):
			// Nothing is decided in the first second; TestAuto has a job that is longer.
		case len(line) > 10 && line[9:11] == "| ":
			logs++
			if !printed[shape(line)] {
				t.Errorf("star run prints no line like %q", line)
			}
		case strings.HasPrefix(line, "trained") || len(summary) > 0 && line != "":
			summary = append(summary, shape(line))
		case line == "" && len(summary) > 0:
			t.Fatal("an empty line in the summary, or another block behind it that begins with one")
		}
		if strings.Contains(line, "/checkpoints/") && len(summary) > 0 {
			break
		}
	}
	for line := range strings.Lines(out.String()) {
		want = append(want, shape(strings.TrimRight(line, "\n")))
	}
	mode := regexp.MustCompile(`^mode      .+, staleness`) // the README's job has changed its own
	for _, lines := range [][]string{summary, want} {
		for i := range lines {
			lines[i] = mode.ReplaceAllString(lines[i], "mode      M, staleness")
		}
	}
	if !reflect.DeepEqual(summary, want) {
		t.Errorf("README's summary has the shape\n%s\nthe program's\n%s", strings.Join(summary, "\n"), strings.Join(want, "\n"))
	}
	if logs < 5 {
		t.Errorf("README shows %d log lines of a job", logs)
	}
}

// Every model has a row in docs/configure.md.
func TestModelsAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/configure.md")
	if err != nil {
		t.Fatal(err)
	}
	_, models, _ := strings.Cut(string(b), "\n## Models\n")
	for _, name := range net.Names() {
		if !strings.Contains(models, "`"+name+"`") {
			t.Errorf("docs/configure.md has no model %s", name)
		}
	}
}

var words = regexp.MustCompile("`([^`]*)`")

// quoted are the words in backquotes.
func quoted(cell string) (ws []string) {
	for _, m := range words.FindAllStringSubmatch(cell, -1) {
		ws = append(ws, m[1])
	}
	return ws
}

// NOTICE names every module that is linked, in its version: run
// go run ./.ci/notices after a change of go.mod.
func TestNoticeNamesWhatIsLinked(t *testing.T) {
	notice, err := os.ReadFile("../../NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", ".", "../star-ps", "../star-worker", "../star-chaos")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v %s", err, jobtest.Stderr(err))
	}
	seen := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); line == "" || seen[line] {
			continue
		}
		seen[line] = true
		if !bytes.Contains(notice, []byte("\n"+line+"\n")) {
			t.Errorf("NOTICE does not name %s; run: go run ./.ci/notices", line)
		}
	}
	if len(seen) < 10 {
		t.Errorf("only %d modules are linked?", len(seen))
	}
}

// The table of packages in docs/architecture.md has those of layering_test.go.
func TestPackagesAreDocumented(t *testing.T) {
	code, err := os.ReadFile("../../layering_test.go")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/architecture.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n| folder | purpose |\n")
	table, _, _ = strings.Cut(table, "\n\n")
	documented := map[string]bool{}
	for line := range strings.Lines(table) {
		for _, folder := range quoted(strings.Split(line, "|")[1]) {
			documented[folder] = true
		}
	}
	packages := regexp.MustCompile(`(?m)^\t\{"(star[^"]*)", `).FindAllStringSubmatch(string(code), -1)
	if len(packages) < 20 {
		t.Fatalf("found %d packages in layering_test.go", len(packages))
	}
	for _, m := range packages {
		folder := strings.TrimPrefix(m[1], "star/")
		if !documented[folder] {
			t.Errorf("docs/architecture.md has no row for %s", folder)
		}
		delete(documented, folder)
	}
	for folder := range documented {
		t.Errorf("docs/architecture.md has a row for %s, which layering_test.go does not have", folder)
	}
}
