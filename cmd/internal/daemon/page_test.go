package daemon

import (
	"context"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star"
	"star/runlog"
)

// The first caller in the middle of a job gets the state of the job, and not that the training has not begun.
func TestFirstAnswerIsTrue(t *testing.T) {
	dir := t.TempDir()
	f, err := os.Create(filepath.Join(dir, "run.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	log := runlog.NewWriter(f)
	log.Write(0, runlog.Start{Format: runlog.MaxFormat, Program: "test", Job: "job", Config: []byte(`{"workers":1,"batch":8,"mode":"ssgd"}`)})
	log.Write(1, runlog.Train{Workers: 1, Model: "softmax", Data: "digits", Params: 10, Plan: "ssgd"})
	const updates = 20000 // reading them takes longer than answering
	for n := range int64(updates) {
		log.Write(2, runlog.Fire{Seq: n + 1, Version: n + 1, Workers: []star.Worker{0}, Staleness: []int64{0}, Pieces: []int64{8 * n, 8}, Samples: 8 * (n + 1), Round: 8})
	}
	if err := log.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	w := httptest.NewRecorder()
	follow(ctx, dir).ServeHTTP(w, httptest.NewRequest("GET", "/view.json", nil))
	if text := w.Body.String(); strings.Contains(text, "has not begun") || !strings.Contains(text, "20000") {
		t.Errorf("the first answer is %.300s", text)
	}
}
