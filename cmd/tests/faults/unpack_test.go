package faults

import (
	"compress/gzip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"star/cmd/tests/jobtest"
)

// A small file that unpacks to a large one is refused by everything that reads packed files, and named.
func TestFilesThatUnpackToMuch(t *testing.T) {
	jobtest.AboutNumbers(t)
	t.Parallel()
	dir := t.TempDir()
	file := func(name, first, again string) string {
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, _ := gzip.NewWriterLevel(f, gzip.BestSpeed)
		z.Write([]byte(first))
		for text := strings.Repeat(again, 1<<20/len(again)); len(text) > 0; text = text[:0] {
			for range 70 { // MiB
				z.Write([]byte(text))
			}
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long := file("run.jsonl.gz", `{"type":"start"`, " ")
	lines := file("lines.jsonl.gz", `{"type":"start","format":1,"program":"star 0.1.0","job":"j","config":{}}`+"\n", "\n")
	table := file("trace.csv.gz", "", "# nothing\n")
	text := file("text.txt.gz", "", "to be or not to be ")
	for _, args := range [][]string{
		{"predictor", "train", long, "--out", filepath.Join(dir, "m")}, {"predictor", "train", lines, "--out", filepath.Join(dir, "m")},
		{"predictor", "train", table, "--out", filepath.Join(dir, "m")}, {"explain", lines}, {"sim", "--from", table},
		{"trace", "import", table, "--out", filepath.Join(dir, "t.csv")},
		{"checkpoint", "convert", "m.safetensors", dir, "--model", "lstm", "--dataset", "chars:" + text},
	} {
		out, err := exec.Command(jobtest.Star(t), args...).CombinedOutput()
		says := string(out)
		if jobtest.ExitCode(err) != 65 || !strings.Contains(says, "unpack") && !strings.Contains(says, "a line of more than 16 MiB") || !strings.Contains(says, ".gz") {
			t.Errorf("star %s: exit %d, %s", strings.Join(args, " "), jobtest.ExitCode(err), says)
		}
	}
}
