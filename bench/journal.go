package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// ErrJournal is in the error of a file that is no journal of star bench tta.
var ErrJournal = errors.New("no journal of star bench tta --out")

// journal keeps finished runs, a line of JSON each. A nil journal keeps nothing.
type journal struct {
	mu   sync.Mutex
	file *os.File
	runs map[string]TTAResult
}

// entry is a line of a journal.
type entry struct {
	Key    string    `json:"key"`
	Result TTAResult `json:"result"`
}

// openJournal reads what there is, and goes on behind it. A last line without its end, which was being written when the
// process was killed, is taken away.
func openJournal(path string) (*journal, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	j := &journal{file: f, runs: map[string]TTAResult{}}
	if err := j.read(path); err != nil {
		f.Close()
		return nil, err
	}
	return j, nil
}

func (j *journal) read(path string) error {
	text, err := io.ReadAll(j.file)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	at := 0
	for line := 1; ; line++ {
		end := bytes.IndexByte(text[at:], '\n')
		if end < 0 {
			break
		}
		var e entry
		d := json.NewDecoder(bytes.NewReader(text[at : at+end]))
		d.DisallowUnknownFields()
		if err := d.Decode(&e); err != nil || e.Key == "" || e.Result.Method == "" {
			if err == nil {
				err = errors.New(`want {"key": …, "result": {…}}`)
			}
			return fmt.Errorf("bench: %s:%d is of %w: %w", path, line, ErrJournal, err)
		}
		j.runs[e.Key] = e.Result
		at += end + 1
	}
	if at == 0 && len(text) > 0 && text[0] != '{' {
		return fmt.Errorf("bench: %s:1 is of %w: it has no line that ends", path, ErrJournal)
	}
	if err := j.file.Truncate(int64(at)); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	_, err = j.file.Seek(int64(at), io.SeekStart)
	return err
}

func (j *journal) find(key string) (r TTAResult, ok bool) {
	if j == nil {
		return r, false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	r, ok = j.runs[key]
	return r, ok
}

// add writes a run, whole or not at all.
func (j *journal) add(key string, r TTAResult) error {
	if j == nil {
		return nil
	}
	line, err := json.Marshal(entry{key, r})
	if err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.runs[key] = r
	if _, err := j.file.Write(append(line, '\n')); err != nil {
		return fmt.Errorf("bench: the journal: %w", err)
	}
	return nil
}

func (j *journal) close() {
	if j != nil {
		j.file.Close()
	}
}
