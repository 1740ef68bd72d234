package wire

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// fieldNames are names of Go fields, which do not travel; absent are the zeros at the end of an array of metrics, which
// is longer in later releases.
var (
	fieldNames = regexp.MustCompile(`[A-Z][A-Za-z0-9]*:`)
	absent     = regexp.MustCompile(`( 0)+\]`)
)

// travels returns what of the text of a message is in its bytes.
func travels(text string) string {
	return absent.ReplaceAllString(fieldNames.ReplaceAllString(text, ":"), "]")
}

// TestEarlierReleases reads the headers of messages that earlier releases wrote: each has the values that it had, in
// order. Newer fields come behind them. cmd/tests/compat has the hashes of the files.
func TestEarlierReleases(t *testing.T) {
	files, err := filepath.Glob("../../cmd/tests/compat/testdata/*/wire.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no files: %v", err)
	}
	kinds := map[string]Kind{}
	for k := Kind(1); k <= LastKind; k++ {
		kinds[k.String()] = k
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n, said := 0, ""
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, " ") {
				said = strings.TrimSpace(line)
				continue
			}
			hexed, ok := strings.CutPrefix(strings.TrimSpace(line), "header ")
			if !ok {
				continue
			}
			n++
			kind, _, _ := strings.Cut(said, " ")
			header, err := hex.DecodeString(strings.TrimSpace(hexed))
			if err != nil || kinds[kind] == 0 {
				t.Fatalf("%s: %s: %v", file, said, err)
			}
			m, err := parseAny(kinds[kind], header)
			if err != nil {
				t.Errorf("%s: %s: %v", file, said, err)
			} else if got := fmt.Sprintf("%s %+v", kind, m); !strings.HasPrefix(travels(got), travels(strings.TrimSuffix(said, "}"))) {
				t.Errorf("%s:\n got %s\nwant %s", file, got, said)
			}
		}
		if n < 50 {
			t.Errorf("%s: only %d headers", file, n)
		}
	}
}
