package jobtest

import (
	"bytes"
	"sync"
)

// Output collects what a process prints. It may be read while the process runs.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// Bytes is a copy of what was printed.
func (o *Output) Bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.text.Bytes())
}

// String is what was printed.
func (o *Output) String() string { return string(o.Bytes()) }
