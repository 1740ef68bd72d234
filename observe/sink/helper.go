package sink

import (
	"bufio"
	"context"
	_ "embed" // the program of the helper
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"star/internal/exitcode"
)

//go:embed helper.py
var program string

// helper is a Python process with the package of a tool. It reads batches as lines of JSON, and answers each with a
// line.
type helper struct {
	name, value string
	cmd         *exec.Cmd
	in          io.WriteCloser
	out         *bufio.Reader
	failures    int // starts in a row
}

func newHelper(name string) func(string, func(string) string) (Sink, error) {
	return func(value string, _ func(string) string) (Sink, error) {
		if _, err := exec.LookPath("python3"); err != nil {
			return nil, fmt.Errorf("%s needs python3 in PATH, with its package (pip install %s): %w", name, name, err)
		}
		return &helper{name: name, value: value}, nil
	}
}

// Takes implements Sink.
func (*helper) Takes(Row) bool { return true }

// sentRow is a row as the helper reads it.
type sentRow struct {
	Time   float64 `json:"time"` // seconds since 1970
	Worker int     `json:"worker"`
	Step   int64   `json:"step"`
	Tag    string  `json:"tag,omitempty"` // of a scalar
	Value  float64 `json:"value"`
	Kind   string  `json:"kind,omitempty"` // of an event
	Level  string  `json:"level,omitempty"`
	Says   string  `json:"says,omitempty"`
}

type sentBatch struct {
	Run     string          `json:"run"`
	Job     string          `json:"job"`
	Program string          `json:"program"`
	Config  json.RawMessage `json:"config"`
	Rows    []sentRow       `json:"rows"`
	Over    bool            `json:"over"`
	Failed  bool            `json:"failed"`
	Lost    int64           `json:"lost"`
}

type answer struct {
	Error    string `json:"error"` // trying again may help
	Fatal    string `json:"fatal"`
	Exit     int    `json:"exit"`
	Rejected int    `json:"rejected"`
	Why      string `json:"why"`
}

// Send implements Sink.
func (h *helper) Send(ctx context.Context, b Batch) error {
	if len(b.Rows) == 0 && !b.Over {
		return nil
	}
	s := sentBatch{Run: b.Run, Job: b.Start.Job, Program: b.Start.Program, Config: b.Start.Config, Over: b.Over, Failed: b.View.Status == "failed", Lost: b.Lost, Rows: []sentRow{}}
	for _, r := range b.Rows {
		x := sentRow{Time: float64(r.Time.UnixMicro()) / 1e6}
		if c := r.Scalar; c != nil {
			x.Worker, x.Step, x.Tag, x.Value = int(c.Worker), c.Step, c.Tag, c.Value
		} else {
			x.Worker, x.Kind, x.Level, x.Says = int(r.Event.Worker), r.Event.Kind, string(r.Event.Level), r.Event.Says
		}
		s.Rows = append(s.Rows, x)
	}
	line, err := json.Marshal(s)
	if err != nil {
		return &Rejected{len(b.Rows), err.Error()}
	}
	if h.cmd == nil {
		if err := h.begin(); err != nil {
			return err
		}
	}
	stop := context.AfterFunc(ctx, func() { h.cmd.Process.Kill() }) // ends the read below
	_, err = h.in.Write(append(line, '\n'))
	var said []byte
	if err == nil {
		said, err = h.out.ReadBytes('\n')
	}
	stop()
	if err != nil {
		return h.broken(ctx, err)
	}
	var a answer
	if err := json.Unmarshal(said, &a); err != nil {
		return h.broken(ctx, fmt.Errorf("it answered %q", brief(said)))
	}
	h.failures = 0
	switch {
	case a.Fatal != "":
		return &Fatal{errors.New(a.Fatal), a.Exit}
	case a.Error != "":
		return errors.New(a.Error)
	case a.Rejected > 0:
		return &Rejected{min(a.Rejected, len(b.Rows)), a.Why}
	}
	return nil
}

func (h *helper) begin() (err error) {
	cmd := exec.Command("python3", "-c", program, h.name, h.value)
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 5 * time.Second
	if h.in, err = cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	h.out = bufio.NewReader(out)
	if err := cmd.Start(); err != nil {
		return &Fatal{err, exitcode.Missing}
	}
	h.cmd = cmd
	return nil
}

// broken ends a helper that does not answer as it should; the next batch begins another one.
func (h *helper) broken(ctx context.Context, err error) error {
	h.cmd.Process.Kill()
	h.in.Close()
	ended := h.cmd.Wait()
	h.cmd = nil
	if cause := context.Cause(ctx); cause != nil {
		return fmt.Errorf("the helper for %s did not answer: %w", h.name, cause)
	}
	if h.failures++; h.failures == 5 {
		return &Fatal{fmt.Errorf("the helper for %s ended five times in a row: %w", h.name, errors.Join(err, ended)), exitcode.Failure}
	}
	return fmt.Errorf("the helper for %s ended: %w", h.name, errors.Join(err, ended))
}

// Close implements Sink. The helper has some time to pass on what it has taken.
func (h *helper) Close() error {
	if h.cmd == nil {
		return nil
	}
	h.in.Close()
	late := time.AfterFunc(time.Minute, func() { h.cmd.Process.Kill() })
	defer late.Stop()
	err := h.cmd.Wait()
	h.cmd = nil
	if err != nil {
		return fmt.Errorf("the helper for %s: %w", h.name, err)
	}
	return nil
}
