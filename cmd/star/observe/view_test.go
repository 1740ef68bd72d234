package observe

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
)

// A web site with a name that is bound to 127.0.0.1 cannot read what star view serves.
func TestViewAnswersItsHostsOnly(t *testing.T) {
	log := filepath.Join(t.TempDir(), "run.jsonl")
	if err := os.WriteFile(log, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- serveView(ctx, l, "127.0.0.1:0", []string{log}, new(bytes.Buffer)) }()
	defer func() { cancel(); <-done }()
	for host, want := range map[string]int{"": http.StatusOK, "localhost:1": http.StatusOK, "evil.example": http.StatusMisdirectedRequest} {
		r, err := http.NewRequestWithContext(ctx, "GET", "http://"+l.Addr().String()+"/view.json", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != want {
			t.Errorf("Host %q: %s, want %d", host, resp.Status, want)
		}
	}
}
