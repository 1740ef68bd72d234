package ops

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
	"star/internal/build"
	"star/train/data"
	"star/train/net"
)

// What star eval says of a checkpoint is what the job said that has written it; star predict agrees with both, sample
// by sample. Models with statistics and models of text too.
func TestEvalSaysWhatTheJobSaid(t *testing.T) {
	jobtest.AboutNumbers(t)
	text := filepath.Join(t.TempDir(), "text.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("the quick brown fox jumps over the lazy dog. ", 60)), 0o600); err != nil {
		t.Fatal(err)
	}
	pictures := t.TempDir()
	if err := jobtest.WriteCIFAR(pictures, 60); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{
		"digits":     {"--model", "lenet", "--steps", "40"},
		"statistics": {"--dataset", "cifar10:" + pictures, "--model", "resnet20:width=0.25", "--steps", "3"},
		"text":       {"--dataset", "chars:" + text + ",window=16", "--model", "lstm:hidden=16,embed=8,layers=1", "--steps", "10"},
	} {
		if testing.Short() && name != "digits" {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, dir := jobtest.Run(t, append(args, "--workers", "2", "--batch", "8")...)
			out, err := exec.Command(jobtest.Star(t), "eval", dir, "--json").Output()
			if err != nil {
				t.Fatalf("star eval: %v %s", err, jobtest.Stderr(err))
			}
			var e judged
			if err := json.Unmarshal(out, &e); err != nil {
				t.Fatal(err)
			}
			if math.Abs(e.Loss-float64(r.TestLoss)) > 1e-6*(1+e.Loss) || math.Abs(e.Accuracy-r.TestAccuracy) > 1e-12 || e.Version != r.Updates || e.Samples != r.Samples {
				t.Errorf("star eval says %+v, the job loss %v, accuracy %v", e, r.TestLoss, r.TestAccuracy)
			}
			file := filepath.Join(dir, "predictions.csv")
			if out, err := exec.Command(jobtest.Star(t), "predict", dir, "--out", file, "--all").CombinedOutput(); err != nil {
				t.Fatalf("star predict: %v\n%s", err, out)
			}
			f, _ := os.Open(file)
			defer f.Close()
			rows, err := csv.NewReader(f).ReadAll()
			if err != nil || len(rows) != 1+e.Predictions {
				t.Fatalf("%v: %d lines for %d predictions", err, len(rows), e.Predictions)
			}
			label, first := slices.Index(rows[0], "label"), slices.Index(rows[0], "p0")
			right, loss := 0, 0.
			for _, row := range rows[1:] {
				if row[label] == row[label+1] {
					right++
				}
				of, _ := strconv.Atoi(row[label])
				p, _ := strconv.ParseFloat(row[first+of], 64)
				loss -= math.Log(p)
			}
			if got := float64(right) / float64(e.Predictions); got != e.Accuracy {
				t.Errorf("%v of the predictions are right, of which star eval says %v", got, e.Accuracy)
			}
			if got := loss / float64(e.Predictions); math.Abs(got-e.Loss) > 1e-4*(1+e.Loss) {
				t.Errorf("the probabilities have the loss %v, star eval says %v", got, e.Loss)
			}
			out, err = exec.Command(jobtest.Star(t), "predict", dir, "--format", "jsonl").Output()
			var p prediction
			if err != nil || json.Unmarshal(out[:bytes.IndexByte(out, '\n')], &p) != nil || bytes.Count(out, []byte("\n")) != e.Predictions || fmt.Sprint(p.Label) != rows[1][label] || fmt.Sprint(p.Predicted) != rows[1][label+1] {
				t.Errorf("%v: as JSON lines: %.200s", err, out)
			}
			for _, bad := range []struct {
				code int
				args []string
			}{
				{78, []string{"eval", dir, "--model", "mlp:hidden=7"}}, {2, []string{"eval", dir, "--model", "nonsense"}}, {2, []string{"eval", dir, "--dataset", "nonsense"}},
				{66, []string{"eval", filepath.Join(dir, "nowhere")}}, {66, []string{"predict", dir, "--dataset", "mnist:" + filepath.Join(dir, "nowhere")}}, {2, []string{"predict", dir, "--format", "xml"}},
			} {
				if out, err := exec.Command(jobtest.Star(t), bad.args...).CombinedOutput(); jobtest.ExitCode(err) != bad.code {
					t.Errorf("%v: %v, want exit code %d\n%s", bad.args, err, bad.code, out)
				}
			}
		})
	}
}

// star models and star datasets list what --model and --dataset take, each in one line.
func TestLists(t *testing.T) {
	run := func(args ...string) string {
		t.Helper()
		out, err := exec.Command(jobtest.Star(t), args...).Output()
		if err != nil {
			t.Fatalf("%v: %v %s", args, err, jobtest.Stderr(err))
		}
		return string(out)
	}
	if got, want := strings.Count(run("models"), "\n"), len(net.Names()); got != want {
		t.Errorf("%d lines, %d models", got, want)
	}
	if got, want := strings.Count(run("datasets"), "\n"), len(data.Formats()); got != want {
		t.Errorf("%d lines, %d formats", got, want)
	}
	for list, n := range map[string]int{"models": len(net.Names()), "datasets": len(data.Formats())} {
		var all []map[string]any
		if err := json.Unmarshal([]byte(run(list, "--json")), &all); err != nil || len(all) != n || all[0]["name"] == "" {
			t.Errorf("%s --json: %v, %d", list, err, len(all))
		}
	}
	for _, args := range [][]string{{"version"}, {"--version"}, {"ps", "--version"}, {"worker", "--version"}} {
		if out := run(args...); !strings.Contains(out, build.Built().Version+" (commit ") {
			t.Errorf("%v: %q", args, out)
		}
	}
}

// A shell is offered the values of flags.
func TestCompletion(t *testing.T) {
	for typed, want := range map[string][]string{
		"run --model l":           {"lenet", "lstm"},
		"run --mode a":            {"auto", "asgd"},
		"run --optimizer ad":      {"adam", "adamw"},
		"run --arch ":             {"ps", "allreduce"},
		"run --compress fp":       {"fp16"},
		"run --baseline sync":     {"sync-switch"},
		"run --dataset cif":       {"cifar10:", "cifar100:"},
		"ps --mode ss":            {"ssgd"},
		"worker --model reg":      nil,
		"worker --model resnet2":  {"resnet20"},
		"ctl st":                  {"status", "stop"},
		"eval --model transf":     {"transformer"},
		"predict --format ":       {"csv", "jsonl"},
		"run --log-level w":       {"warn"},
		"checkpoint convert --op": {"--optimizer"},
	} {
		words := strings.Split(typed, " ")
		out, err := exec.Command(jobtest.Star(t), append([]string{"__complete"}, words...)...).Output()
		if err != nil {
			t.Fatalf("%q: %v", typed, err)
		}
		var got []string
		for line := range strings.Lines(string(out)) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), "\t"); word != "" && word[0] != ':' {
				got = append(got, word)
			}
		}
		for _, w := range want {
			if !slices.Contains(got, w) {
				t.Errorf("%q is offered %q, want %q among them", typed, got, w)
			}
		}
		if len(want) == 0 && len(got) > 0 {
			t.Errorf("%q is offered %q", typed, got)
		}
	}
}
