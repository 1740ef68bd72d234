package main

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"gocloud.dev/gcerrors"

	"star/train/checkpoint"
)

// shelf is as much of S3 as checkpoints need, in memory, over HTTP. It checks the signature of every request (AWS
// Signature Version 4), so a client that does not sign, or signs something else than it sends, gets nothing.
type shelf struct {
	t       *testing.T
	mu      sync.Mutex
	objects map[string][]byte // by /bucket/key
	parts   map[string]map[int][]byte
	denied  int
	broken  int // number of further requests to answer with 503
	puts    []string
}

const (
	accessKey   = "AKIDEXAMPLE"
	strangerKey = "AKIDSTRANGER"
	secretKey   = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
)

func sign(key []byte, text string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(text))
	return m.Sum(nil)
}

// signed checks a request as docs.aws.amazon.com/AmazonS3/latest/API/sig-v4-header-based-auth.html says.
func signed(r *http.Request) error {
	rest, ok := strings.CutPrefix(r.Header.Get("Authorization"), "AWS4-HMAC-SHA256 ")
	if !ok {
		return errors.New("not signed")
	}
	fields := map[string]string{}
	for _, f := range strings.Split(rest, ",") {
		k, v, _ := strings.Cut(strings.TrimSpace(f), "=")
		fields[k] = v
	}
	scope := strings.Split(fields["Credential"], "/")
	if len(scope) != 5 || scope[0] != accessKey {
		return fmt.Errorf("credential %q", fields["Credential"])
	}
	var head strings.Builder
	for _, name := range strings.Split(fields["SignedHeaders"], ";") {
		v := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			v = r.Host
		case "content-length":
			v = strconv.FormatInt(r.ContentLength, 10)
		}
		fmt.Fprintf(&head, "%s:%s\n", name, strings.Join(strings.Fields(v), " "))
	}
	query := strings.ReplaceAll(r.URL.Query().Encode(), "+", "%20")
	canonical := strings.Join([]string{r.Method, r.URL.EscapedPath(), query, head.String(), fields["SignedHeaders"], r.Header.Get("X-Amz-Content-Sha256")}, "\n")
	sum := sha256.Sum256([]byte(canonical))
	text := strings.Join([]string{"AWS4-HMAC-SHA256", r.Header.Get("X-Amz-Date"), strings.Join(scope[1:], "/"), hex.EncodeToString(sum[:])}, "\n")
	key := []byte("AWS4" + secretKey)
	for _, s := range scope[1:] {
		key = sign(key, s)
	}
	if want := hex.EncodeToString(sign(key, text)); want != fields["Signature"] {
		return fmt.Errorf("signature of %s %s", r.Method, r.URL)
	}
	return nil
}

// body is what a request carries: plain, or in chunks that are signed as a whole (aws-chunked).
func body(r *http.Request) ([]byte, error) {
	b, err := io.ReadAll(r.Body)
	if err != nil || !strings.HasPrefix(r.Header.Get("X-Amz-Content-Sha256"), "STREAMING-") {
		return b, err
	}
	var out []byte
	for {
		line, rest, ok := bytes.Cut(b, []byte("\r\n"))
		size, _, _ := strings.Cut(string(line), ";")
		n, err := strconv.ParseInt(size, 16, 64)
		if !ok || err != nil || n+2 > int64(len(rest)) {
			return out, err
		}
		if n == 0 {
			return out, nil
		}
		out, b = append(out, rest[:n]...), rest[n+2:]
	}
}

func (s *shelf) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fail := func(code int, name string) {
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(code)
		if r.Method != http.MethodHead {
			fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", name, name)
		}
	}
	if s.broken > 0 {
		s.broken--
		fail(http.StatusServiceUnavailable, "SlowDown")
		return
	}
	if strings.Contains(r.Header.Get("Authorization"), strangerKey) { // as versitygw answers
		fail(http.StatusNotFound, "XAdminUserNotFound")
		return
	}
	if err := signed(r); err != nil {
		s.denied++
		fail(http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	q, key := r.URL.Query(), r.URL.Path
	switch {
	case r.Method == http.MethodGet && q.Get("list-type") == "2":
		type object struct {
			Key          string
			Size         int
			LastModified string
		}
		var result struct {
			XMLName     xml.Name `xml:"ListBucketResult"`
			IsTruncated bool
			Contents    []object
		}
		for _, k := range slices.Sorted(maps.Keys(s.objects)) {
			if rest, ok := strings.CutPrefix(k, strings.TrimRight(key, "/")+"/"); ok && strings.HasPrefix(rest, q.Get("prefix")) {
				result.Contents = append(result.Contents, object{rest, len(s.objects[k]), time.Now().UTC().Format(time.RFC3339)})
			}
		}
		w.Header().Set("Content-Type", "application/xml")
		xml.NewEncoder(w).Encode(result)
	case r.Method == http.MethodPost && q.Has("uploads"):
		s.parts[key] = map[int][]byte{}
		fmt.Fprintf(w, "<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
	case r.Method == http.MethodPut && q.Has("uploadId"):
		b, err := body(r)
		if err != nil {
			fail(http.StatusBadRequest, "IncompleteBody")
			return
		}
		n, _ := strconv.Atoi(q.Get("partNumber"))
		s.parts[key][n] = b
		w.Header().Set("ETag", fmt.Sprintf("%q", strconv.Itoa(n)))
	case r.Method == http.MethodPost && q.Has("uploadId"):
		var all []byte
		for _, n := range slices.Sorted(maps.Keys(s.parts[key])) {
			all = append(all, s.parts[key][n]...)
		}
		s.objects[key] = all
		s.puts = append(s.puts, key)
		fmt.Fprintf(w, "<CompleteMultipartUploadResult><Key>%s</Key><ETag>1</ETag></CompleteMultipartUploadResult>", key)
	case r.Method == http.MethodPut:
		b, err := body(r)
		if err != nil {
			fail(http.StatusBadRequest, "IncompleteBody")
			return
		}
		s.objects[key] = b
		s.puts = append(s.puts, key)
		w.Header().Set("ETag", `"1"`)
	case r.Method == http.MethodDelete:
		delete(s.objects, key)
		w.WriteHeader(http.StatusNoContent)
	default: // GET, HEAD
		b, ok := s.objects[key]
		if !ok {
			fail(http.StatusNotFound, "NoSuchKey")
			return
		}
		w.Header().Set("Last-Modified", time.Now().UTC().Format(http.TimeFormat))
		w.Header().Set("ETag", `"1"`)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
	}
}

// stores are the addresses that the tests run on: files, S3 over HTTP, and versitygw, where that is in PATH.
func stores(t *testing.T) (addresses map[string]string, s *shelf) {
	s = &shelf{t: t, objects: map[string][]byte{}, parts: map[string]map[int][]byte{}}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	t.Setenv("AWS_ACCESS_KEY_ID", accessKey)
	t.Setenv("AWS_SECRET_ACCESS_KEY", secretKey)
	t.Setenv("AWS_EC2_METADATA_DISABLED", "true")
	addresses = map[string]string{
		"s3":   "s3://bucket/jobs/a?region=us-east-1&use_path_style=true&endpoint=" + url.QueryEscape(server.URL),
		"file": "file://" + filepath.ToSlash(t.TempDir()) + "/jobs/a",
	}
	if program, err := exec.LookPath("versitygw"); err == nil {
		addresses["versitygw"] = "s3://bucket/jobs/a?region=us-east-1&use_path_style=true&endpoint=http://" + versitygw(t, program)
	}
	return addresses, s
}

// versitygw starts that program over a folder with a bucket, and returns where it listens.
func versitygw(t *testing.T, program string) (at string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at = l.Addr().String()
	l.Close()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "bucket"), 0o777); err != nil {
		t.Fatal(err)
	}
	cmd, said := exec.Command(program, "--port", at, "posix", dir), new(bytes.Buffer)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "ROOT_ACCESS_KEY="+accessKey, "ROOT_SECRET_KEY="+secretKey), said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end := sync.OnceFunc(func() { cmd.Process.Kill(); cmd.Wait() })
	t.Cleanup(end)
	for stop := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		c, err := net.Dial("tcp", at)
		if err == nil {
			c.Close()
			return at
		}
		if time.Now().After(stop) {
			end()
			t.Fatalf("versitygw does not listen within a minute: %v\n%s", err, said)
		}
	}
}

// The helper beside the tests: package checkpoint finds it in PATH.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == checkpoint.HelperName {
		main()
		return
	}
	self, err := os.Executable()
	if err != nil {
		panic(err)
	}
	// Beside the binary, where go test itself removes all there is, also when this process was killed.
	dir, err := os.MkdirTemp(filepath.Dir(self), "star-bucket")
	if err == nil {
		err = os.Symlink(self, filepath.Join(dir, checkpoint.HelperName))
	}
	if err != nil {
		panic(err)
	}
	os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func save(t *testing.T, place string, version int64, n int) {
	t.Helper()
	dir := checkpoint.Join(place, checkpoint.Name(version, 1))
	m := checkpoint.Manifest{Params: int64(n), Version: version, Generation: 1, Optimizer: "sgd"}
	for i, cut := range [][2]int{{0, n / 3}, {n / 3, n / 2}, {n / 2, n}} {
		s := checkpoint.Shard{From: int64(cut[0]), To: int64(cut[1]), Version: version, Optimizer: "sgd", Params: vector(version, n)[cut[0]:cut[1]]}
		f, err := checkpoint.WriteShard(dir, i, s)
		if err != nil {
			t.Fatal(err)
		}
		m.Shards = append(m.Shards, f)
	}
	if err := checkpoint.WriteManifest(dir, m); err != nil {
		t.Fatal(err)
	}
}

func vector(version int64, n int) []float32 {
	v := make([]float32, n)
	for i := range v {
		v[i] = float32(version)*1000 + float32(i)
	}
	return v
}

// Checkpoints of three shards in a store: written, listed, verified, read by other cuts, damaged, kept, removed.
func TestCheckpoints(t *testing.T) {
	places, s := stores(t)
	for name, place := range places {
		t.Run(name, func(t *testing.T) {
			if found, err := checkpoint.List(place); len(found) > 0 || err != nil && !errors.Is(err, checkpoint.ErrMissing) {
				t.Fatalf("before anything is there: %v, %v", found, err)
			}
			if _, _, err := checkpoint.Latest(place); !errors.Is(err, checkpoint.ErrMissing) {
				t.Errorf("nothing: %v", err)
			}
			for v := range int64(3) {
				save(t, place, v+1, 1000)
			}
			c, skipped, err := checkpoint.Latest(place)
			if err != nil || len(skipped) > 0 || c.Manifest().Version != 3 {
				t.Fatalf("%v, skipped %v", err, skipped)
			}
			got := make([]float32, 500)
			if err := c.Range(200, 700, got); err != nil || !slices.Equal(got, vector(3, 1000)[200:700]) {
				t.Errorf("parameters 200 to 700: %v", err)
			}
			if err := checkpoint.WriteManifest(c.Dir(), c.Manifest()); !errors.Is(err, os.ErrExist) {
				t.Errorf("a second manifest: %v", err)
			}
			// One is damaged, another lacks a file, and one was never completed.
			shard := func(v int64, i int) string {
				return checkpoint.Join(checkpoint.Join(place, checkpoint.Name(v, 1)), checkpoint.ShardName(i))
			}
			if err := run(t.Context(), []string{"put", shard(3, 1)}, strings.NewReader("\x00\x00\x00\x01x\x00\x00\x00\x00"), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := checkpoint.WriteShard(checkpoint.Join(place, checkpoint.Name(9, 1)), 0, checkpoint.Shard{To: 1, Params: []float32{1}}); err != nil {
				t.Fatal(err)
			}
			c, skipped, err = checkpoint.Latest(place)
			if err != nil || c.Manifest().Version != 2 || len(skipped) != 1 || !errors.Is(skipped[0], checkpoint.ErrCorrupt) {
				t.Errorf("after damage: %v, skipped %v", err, skipped)
			}
			if err := checkpoint.Discard(checkpoint.Join(place, checkpoint.Name(9, 1))); err != nil {
				t.Error(err)
			}
			if err := checkpoint.Keep(place, 2, c.Manifest()); err != nil {
				t.Error(err)
			}
			found, err := checkpoint.List(place)
			if err != nil || len(found) != 2 || found[0].Version != 3 || found[1].Version != 2 {
				t.Errorf("kept %v, %v", found, err)
			}
			if _, err := checkpoint.Open(checkpoint.Join(place, checkpoint.Name(1, 1))); !errors.Is(err, checkpoint.ErrMissing) {
				t.Errorf("removed, and yet %v", err)
			}
		})
	}
	if s.denied > 0 {
		t.Errorf("%d requests were not signed as they should", s.denied)
	}
	if last := s.puts[len(s.puts)-1]; len(s.puts) < 12 || !strings.HasPrefix(last, "/bucket/jobs/a/ckpt-") {
		t.Errorf("%d objects, the last %s", len(s.puts), last)
	}
}

// More than one part: what does not fit into one request of S3.
func TestLargeObject(t *testing.T) {
	places, s := stores(t)
	const n = 9 << 20
	save(t, places["s3"], 7, n)
	c, _, err := checkpoint.Latest(places["s3"])
	if err != nil {
		t.Fatal(err)
	}
	got := make([]float32, n)
	if err := c.Params(got); err != nil || !slices.Equal(got, vector(7, n)) {
		t.Errorf("it comes back as something else: %v", err)
	}
	if len(s.parts) == 0 {
		t.Error("it went up in one piece")
	}
}

// A store that is busy is asked again.
func TestBusyStore(t *testing.T) {
	places, s := stores(t)
	s.broken = 2
	save(t, places["s3"], 1, 30)
	if _, _, err := checkpoint.Latest(places["s3"]); err != nil {
		t.Error(err)
	}
}

// A put makes no object if its writer is killed, or says too little.
func TestCutPut(t *testing.T) {
	places, s := stores(t)
	for name, place := range places {
		at := checkpoint.Join(checkpoint.Join(place, "ckpt"), "file")
		for _, cut := range []string{"", "\x00\x00", "\x00\x00\x00\x05abc", "\x00\x00\x00\x03abc", "\xff\xff\xff\xffabc"} {
			if err := run(t.Context(), []string{"put", at}, strings.NewReader(cut), nil); err == nil {
				t.Errorf("%s: %q became an object", name, cut)
			}
			if err := run(t.Context(), []string{"size", at}, nil, new(bytes.Buffer)); gcerrors.Code(err) != gcerrors.NotFound {
				t.Errorf("%s: after %q: %v, want that there is none", name, cut, err)
			}
		}
		// The real program, killed in the middle.
		cmd := exec.Command(checkpoint.HelperName, "put", at)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		in.Write([]byte("\x00\x00\x00\x03abc"))
		cmd.Process.Kill()
		cmd.Wait()
		if err := run(t.Context(), []string{"size", at}, nil, new(bytes.Buffer)); gcerrors.Code(err) != gcerrors.NotFound {
			t.Errorf("%s: after a kill: %v, want that there is none", name, err)
		}
	}
	if len(s.objects) > 0 {
		t.Errorf("objects %v", slices.Collect(maps.Keys(s.objects)))
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		address string
		depth   int
		bucket  string
		key     string
	}{
		{"s3://b/p/ckpt-1/f?region=x", 2, "s3://b?region=x", "p/ckpt-1/f"},
		{"s3://b", 0, "s3://b", ""},
		{"s3://b/?region=x", 0, "s3://b?region=x", ""},
		{"file:///a/b/ckpt-1/f", 2, "file:///a/b?create_dir=true&metadata=skip&no_tmp_dir=true", "ckpt-1/f"},
		{"file:///a/b", 0, "file:///a/b?create_dir=true&metadata=skip&no_tmp_dir=true", ""},
	} {
		bucket, key, err := parse(c.address, c.depth)
		if err != nil || bucket != c.bucket || key != c.key {
			t.Errorf("%s: %q, %q, %v, want %q, %q", c.address, bucket, key, err, c.bucket, c.key)
		}
	}
	for _, args := range [][]string{nil, {"put"}, {"put", "a", "b"}, {"get", "s3://b/k"}, {"nothing", "s3://b"}, {"list", "folder"}, {"get", "s3://b/k?region=x", "-1", "2"}} {
		var u usageError
		if err := run(context.Background(), args, nil, nil); !errors.As(err, &u) {
			t.Errorf("%q: %v, want that it is used wrongly", args, err)
		}
	}
}

// A store that does not take the key, or does not answer, is not an empty store: a process that looks for a checkpoint
// there gets an error, which names the variable of the key.
func TestRefusedKey(t *testing.T) {
	places, s := stores(t)
	save(t, places["s3"], 1, 30)
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody.Close()
	gone := "s3://bucket/jobs/a?region=us-east-1&use_path_style=true&endpoint=http://" + nobody.Addr().String()
	for _, c := range []struct {
		name, place, key string
		broken           int
		kind             error
		says             []string
	}{
		{"another key", places["s3"], "AKIDOTHER", 0, checkpoint.ErrRefused, []string{"s3://bucket/jobs/a", "AWS_ACCESS_KEY_ID", "SignatureDoesNotMatch"}},
		{"a key that the store has never seen", places["s3"], strangerKey, 0, checkpoint.ErrRefused, []string{"AWS_ACCESS_KEY_ID", "XAdminUserNotFound"}},
		{"a key that versitygw has never seen", places["versitygw"], "AKIDOTHER", 0, checkpoint.ErrRefused, []string{"s3://bucket/jobs/a", "AWS_ACCESS_KEY_ID"}},
		{"no key", places["s3"], "", 0, checkpoint.ErrRefused, []string{"there is no key for s3://bucket/jobs/a", "AWS_ACCESS_KEY_ID"}},
		{"nobody listens", gone, accessKey, 0, checkpoint.ErrUnreachable, []string{nobody.Addr().String()}},
		{"a store that fails", places["s3"], accessKey, 100, checkpoint.ErrUnreachable, []string{"503"}},
	} {
		if c.place == "" {
			continue // it is not installed
		}
		t.Setenv("AWS_ACCESS_KEY_ID", c.key)
		s.mu.Lock()
		s.broken = c.broken
		s.mu.Unlock()
		_, _, latest := checkpoint.Latest(c.place)
		_, list := checkpoint.List(c.place)
		open := latest
		if c.key != strangerKey && c.place != places["versitygw"] { // what HEAD says of it is that there is nothing
			_, open = checkpoint.Open(checkpoint.Join(c.place, checkpoint.Name(1, 1)))
		}
		for what, err := range map[string]error{"latest": latest, "list": list, "open": open} {
			if !errors.Is(err, c.kind) || errors.Is(err, checkpoint.ErrMissing) || checkpoint.None(err) {
				t.Errorf("%s, %s: %v, want that it is %v", c.name, what, err, c.kind)
				continue
			}
			for _, says := range c.says {
				if what != "open" && !strings.Contains(err.Error(), says) { // the answer to HEAD has no body
					t.Errorf("%s, %s: %v does not say %s", c.name, what, err, says)
				}
			}
		}
	}
	s.mu.Lock()
	s.broken = 0
	s.mu.Unlock()
	if _, _, err := checkpoint.Latest(places["file"]); !checkpoint.None(err) {
		t.Errorf("nothing there: %v", err)
	}
}
