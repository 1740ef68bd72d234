package checkpoint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"star/internal/exitcode"
)

// killAt is set in processes that are to kill themselves (TestKillAtEveryStep).
const killAt = "STAR_TEST_KILL_AT"

// TestMain lets the test binary be a helper for addresses like dir:///folder; cmd/star-bucket has the real one, and
// tests of it on S3.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == HelperName {
		os.Exit(fakeHelper(os.Args[1:]))
	}
	if os.Getenv(killAt) != "" { // it kills itself, and would leave a folder each time
		os.Exit(m.Run())
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	// Beside the binary, where go test itself removes all there is, also when this process was killed.
	dir, err := os.MkdirTemp(filepath.Dir(self), "star-checkpoint")
	if err == nil {
		err = os.Symlink(self, filepath.Join(dir, HelperName))
	}
	if err != nil {
		panic(err)
	}
	os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	os.Setenv("TMPDIR", dir)
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

// fakeHelper does what cmd/star-bucket does, in a folder. Addresses that have fault=… in them fail in that way.
func fakeHelper(args []string) int {
	address, query, _ := strings.Cut(args[1], "?")
	path := strings.TrimPrefix(address, "dir://")
	if fault, ok := strings.CutPrefix(query, "fault="); ok && strings.HasPrefix(fault, args[0]) {
		switch strings.TrimPrefix(fault, args[0]+"-") {
		case "deaf":
			time.Sleep(time.Minute)
		case "short":
			os.Stdout.Write([]byte("abc"))
		case "noise":
			fmt.Println("nonsense")
			return 0
		}
		fmt.Fprintln(os.Stderr, "first line\nthe bucket is on fire")
		return 1
	}
	fail := func(err error) int {
		if errors.Is(err, os.ErrNotExist) {
			return exitcode.Missing
		}
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	switch args[0] {
	case "put":
		b, err := io.ReadAll(Chunks(os.Stdin))
		if err == nil {
			if err = os.MkdirAll(filepath.Dir(path), 0o777); err == nil {
				err = os.WriteFile(path, b, 0o666)
			}
		}
		if err != nil {
			return fail(err)
		}
	case "get":
		b, err := os.ReadFile(path)
		if err != nil {
			return fail(err)
		}
		offset, _ := strconv.ParseInt(args[2], 10, 64)
		length, _ := strconv.ParseInt(args[3], 10, 64)
		if b = b[offset:]; length >= 0 {
			b = b[:length]
		}
		os.Stdout.Write(b)
	case "size":
		info, err := os.Stat(path)
		if err != nil {
			return fail(err)
		}
		fmt.Println(info.Size())
	case "list":
		found, err := filepath.Glob(path + "/*/*")
		if err != nil {
			return fail(err)
		}
		for _, f := range found {
			json.NewEncoder(os.Stdout).Encode(Entry{filepath.Base(filepath.Dir(f)), filepath.Base(f)})
		}
	case "remove":
		os.RemoveAll(path)
	}
	return 0
}

// What folders do, addresses do: the same job, on the same calls.
func TestAddresses(t *testing.T) {
	place := "dir://" + t.TempDir() + "?region=x"
	for v := range int64(3) {
		dir := Join(place, Name(v+1, 1))
		if err := (job{n: 100, version: v + 1}).save(at(dir), dir, 30, 60); err != nil {
			t.Fatal(err)
		}
	}
	c, skipped, err := Latest(place)
	if err != nil || len(skipped) > 0 || c.Manifest().Version != 3 {
		t.Fatalf("%v, skipped %v", err, skipped)
	}
	if err := (job{n: 100, version: 3}).same(c); err != nil {
		t.Error(err)
	}
	if err := (job{n: 100, version: 3}).save(at(c.Dir()), c.Dir()); !errors.Is(err, os.ErrExist) {
		t.Errorf("written over: %v", err)
	}
	if err := Keep(place, 1, c.Manifest()); err != nil {
		t.Error(err)
	}
	if found, err := List(place); err != nil || len(found) != 1 || found[0].Version != 3 || !Complete(Join(place, found[0].Name)) {
		t.Errorf("kept %v, %v", found, err)
	}
	if _, err := c.Export(Join(place, "m.safetensors")); err != nil {
		t.Error(err)
	}
	if n, err := at(place).size(place, "m.safetensors"); err != nil || n < 412 {
		t.Errorf("exported %d bytes, %v", n, err)
	}
}

// A helper that fails is quoted; one that has come to a halt is ended, and named.
func TestHelperFails(t *testing.T) {
	usual := helperPatience
	defer func() { helperPatience = usual }()
	root := t.TempDir()
	place := func(fault string) string { return Join("dir://"+root, Name(1, 1)) + "?fault=" + fault }
	if err := (job{n: 9, version: 1}).save(local{quick{}}, filepath.Join(root, Name(1, 1)), 4); err != nil {
		t.Fatal(err)
	}
	for fault, says := range map[string]string{
		"get-x":      "star-bucket get: the bucket is on fire",
		"get-short":  "star-bucket get: the bucket is on fire",
		"get-deaf":   "has not moved a byte for 300ms",
		"size-noise": `star-bucket size says "nonsense\n"`,
		"size-deaf":  "not moved a byte",
	} {
		// Short only where the helper is deaf on purpose: on a busy host any other one may take longer than this to start.
		if helperPatience = usual; strings.HasSuffix(fault, "deaf") {
			helperPatience = 300 * time.Millisecond
		}
		if _, err := Open(place(fault)); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", fault, err, says)
		}
	}
	helperPatience = usual
	if _, err := List(place("list-noise")); err == nil || !strings.Contains(err.Error(), "star-bucket list") {
		t.Errorf("a list of nonsense: %v", err)
	}
	dir := Join("dir://"+root, "ckpt") + "?fault=put-x"
	if err := (helper{}).put(dir, "f", func(w io.Writer) error {
		for range 1000 {
			if _, err := w.Write(make([]byte, 4096)); err != nil {
				return err
			}
		}
		return nil
	}); err == nil || !strings.Contains(err.Error(), "on fire") {
		t.Errorf("put: %v", err)
	}
	// What cannot be made to the end is not there.
	broken := errors.New("broken")
	dir = Join("dir://"+root, "ckpt")
	err := (helper{}).put(dir, "f", func(w io.Writer) error {
		w.Write([]byte("half"))
		return broken
	})
	if err == nil {
		t.Error("half a file was put")
	}
	if _, e := (helper{}).size(dir, "f"); !errors.Is(e, os.ErrNotExist) {
		t.Errorf("half a file is there: %v, after %v", e, err)
	}
	t.Setenv("PATH", root)
	for _, err := range []error{Check("s3://bucket"), (helper{}).put(dir, "f", func(io.Writer) error { return nil })} {
		if err == nil || !strings.Contains(err.Error(), "make star-bucket") {
			t.Errorf("without the helper: %v", err)
		}
	}
	if err := Check(root); err != nil {
		t.Errorf("a folder needs no helper: %v", err)
	}
}

func TestJoin(t *testing.T) {
	for _, c := range [][3]string{
		{"a/b", "c", filepath.Join("a", "b", "c")},
		{"s3://b", "c", "s3://b/c"},
		{"s3://b/", "c", "s3://b/c"},
		{"s3://b/p?region=x/y", "c", "s3://b/p/c?region=x/y"},
	} {
		got := Join(c[0], c[1])
		if got != c[2] {
			t.Errorf("Join(%q, %q) is %q, want %q", c[0], c[1], got, c[2])
		}
		if in, name := split(got); name != c[1] || Join(in, name) != got {
			t.Errorf("split(%q) is %q, %q", got, in, name)
		}
	}
}

// However the bytes come, what was written comes out, and what was cut short is an error.
func FuzzChunks(f *testing.F) {
	f.Add([]byte("abc"), 3, true)
	f.Add(bytes.Repeat([]byte("x"), 2*maxChunk+5), 7, false)
	f.Fuzz(func(t *testing.T, b []byte, step int, end bool) {
		var sent bytes.Buffer
		w := chunks{&sent, patience{time.NewTimer(time.Hour)}}
		step = 1 + max(0, step%(maxChunk+10))
		for part := range slices.Chunk(b, step) {
			if n, err := w.Write(part); n != len(part) || err != nil {
				t.Fatal(n, err)
			}
		}
		want := error(io.ErrUnexpectedEOF)
		if end {
			sent.Write(make([]byte, 4))
			sent.WriteString("what follows does not count")
			want = nil
		}
		got, err := io.ReadAll(Chunks(iotest.HalfReader(&sent)))
		if !bytes.Equal(got, b) || err != want {
			t.Fatalf("%d bytes of %d, %v", len(got), len(b), err)
		}
	})
}

// FuzzUnchunk: what a stranger sends neither crashes nor is taken for whole without its end.
func FuzzUnchunk(f *testing.F) {
	f.Add([]byte("\x00\x00\x00\x03abc\x00\x00\x00\x00"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := io.ReadAll(Chunks(bytes.NewReader(b)))
		if err == nil && !bytes.Contains(b, make([]byte, 4)) {
			t.Fatalf("%q is whole: %q", b, got)
		}
		if len(got) > len(b) {
			t.Fatalf("%d bytes of %d", len(got), len(b))
		}
	})
}

func FuzzListing(f *testing.F) {
	f.Add([]byte(`{"folder":"a","name":"b"}` + "\n" + `{"folder":"a","name":"c"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		found, err := parseListing(b)
		if err != nil {
			return
		}
		seen := map[string]bool{}
		for _, x := range found {
			if seen[x.name] || len(x.files) == 0 {
				t.Fatalf("%q: %+v", b, found)
			}
			seen[x.name] = true
		}
	})
}
