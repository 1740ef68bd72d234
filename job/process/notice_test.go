package process

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"star/job"
)

func TestNoticed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notice")
	answer := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			fmt.Fprint(w, body)
		}))
		t.Cleanup(s.Close)
		return s.URL + "/computeMetadata/v1/instance/preempted"
	}
	amazon := func(status int) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
				fmt.Fprint(w, "a-token")
			case r.Header.Get("X-aws-ec2-metadata-token") != "a-token":
				w.WriteHeader(http.StatusUnauthorized)
			default:
				w.WriteHeader(status)
				fmt.Fprint(w, `{"action": "terminate", "time": "2026-09-18T08:22:00Z"}`)
			}
		}))
		t.Cleanup(s.Close)
		return s.URL + "/latest/meta-data/spot/instance-action"
	}
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	for _, c := range []struct {
		name, place string
		want        bool
		err         string
	}{
		{"no file", file, false, ""},
		{"a file", t.TempDir(), true, ""},
		{"below a file", os.Args[0] + "/notice", false, "not a directory"},
		{"Google, no", answer(200, "FALSE"), false, ""},
		{"Google, yes", answer(200, "TRUE\n"), true, ""},
		{"an empty answer", answer(200, ""), false, ""},
		{"not found", answer(404, "no such page"), false, ""},
		{"a failure", answer(500, "TRUE"), false, "Internal Server Error"},
		{"Amazon, no", amazon(404), false, ""},
		{"Amazon, yes", amazon(200), true, ""},
		{"nobody answers", closed.URL, false, "refused"},
	} {
		got, err := noticed(t.Context(), c.place)
		if got != c.want || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, %v", c.name, got, err)
		}
	}
}

// A notice ends the context as SIGTERM does; what cannot be asked is said once, and asked again.
func TestWatchNotice(t *testing.T) {
	if ctx := t.Context(); Noticed(ctx, "", nil) != ctx {
		t.Error("another context, and no notice to look for")
	}
	dir := t.TempDir()
	place := filepath.Join(dir, "a", "notice")
	if err := os.WriteFile(filepath.Join(dir, "a"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	ctx, cancel := context.WithCancelCause(t.Context())
	tick, ended := make(chan time.Time), make(chan struct{})
	go func() {
		defer close(ended)
		watchNotice(ctx, place, slog.New(slog.NewTextHandler(&said, nil)), tick, cancel)
	}()
	tick <- time.Time{}
	tick <- time.Time{}
	tick <- time.Time{} // the second look is over
	if ctx.Err() != nil {
		t.Error("ended without a notice")
	}
	if err := os.Remove(filepath.Join(dir, "a")); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(place, 0o777); err != nil {
		t.Fatal(err)
	}
	for over := false; !over; {
		select {
		case tick <- time.Time{}:
		case <-ended:
			over = true
		}
	}
	if got := job.ExitCode(context.Cause(ctx)); got != 143 {
		t.Errorf("exit code %d, want 143", got)
	}
	if n := strings.Count(said.String(), "trying on"); n != 1 {
		t.Errorf("said %d times that it cannot be asked\n%s", n, said.String())
	}
}
