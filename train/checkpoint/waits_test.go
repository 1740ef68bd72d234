package checkpoint

import (
	"path/filepath"
	"strings"
	"testing"

	"star/internal/flightrecorder"
)

// stuck is a disk that does not flush before the test allows it.
type stuck struct {
	quick
	flushes, on chan struct{}
}

type stuckFile struct {
	file
	d *stuck
}

func (d *stuck) Create(path string) (file, error) {
	f, err := d.quick.Create(path)
	return &stuckFile{f, d}, err
}

func (f *stuckFile) Sync() error {
	f.d.flushes <- struct{}{}
	<-f.d.on
	return nil
}

// A disk that does not answer is on the list of what is waited for, with the file.
func TestWaitsAreListed(t *testing.T) {
	waiting := func(path string) (line string) {
		for _, w := range flightrecorder.List() {
			if strings.Contains(w.String(), path) {
				line = w.String()
			}
		}
		return line
	}
	dir := filepath.Join(t.TempDir(), Name(1, 1))
	d := &stuck{flushes: make(chan struct{}), on: make(chan struct{})}
	saved := make(chan error)
	go func() { saved <- (job{n: 9, version: 1}).save(local{d}, dir, 4) }()
	for _, name := range []string{ShardName(1), ShardName(0), buffersName, "predictor.jsonl", ResidualName(0), ResidualName(2), ManifestName} {
		<-d.flushes
		if line := waiting(dir); !strings.Contains(line, "a checkpoint: waits for the storage to take "+filepath.Join(dir, name)+", until the file system answers") {
			t.Errorf("while %s is flushed the list says %q", name, line)
		}
		d.on <- struct{}{}
	}
	if err := <-saved; err != nil {
		t.Fatal(err)
	}
	if line := waiting(dir); line != "" {
		t.Errorf("all is saved, and the list says %q", line)
	}
	// The reader, from storage that does not answer either.
	asked, answer := make(chan struct{}), make(chan struct{})
	opened := make(chan error)
	go func() {
		_, err := openIn(slow{local{osDisk{}}, asked, answer}, dir)
		opened <- err
	}()
	<-asked
	if line := waiting(dir); !strings.Contains(line, "waits for the storage to give "+filepath.Join(dir, ManifestName)) {
		t.Errorf("while the manifest is read the list says %q", line)
	}
	close(answer)
	if err := <-opened; err != nil || waiting(dir) != "" {
		t.Errorf("%v, and the list says %q", err, waiting(dir))
	}
}

// slow is a store that answers when the test allows it.
type slow struct {
	store
	asked, answer chan struct{}
}

func (s slow) size(dir, name string) (int64, error) {
	select {
	case s.asked <- struct{}{}:
	case <-s.answer:
	}
	<-s.answer
	return s.store.size(dir, name)
}
