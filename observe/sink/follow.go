package sink

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"star/internal/durable"
	"star/internal/exitcode"
	"star/internal/unpack"
	"star/job"
	"star/observe/export"
	"star/observe/web"
	"star/runlog"
	"star/runlog/parts"
)

// Times of a Follower.
const (
	scalarsEvery = time.Second      // points of a scalar, by the job's clock
	pollEvery    = time.Second      // for new lines
	firstRetry   = time.Second      // after an error; then twice as long each time
	lastRetry    = 15 * time.Second // the longest
	mostRows     = 1000             // of a batch: MLflow takes no more
)

// Patience is how long a Follower waits.
type Patience struct {
	Appear time.Duration // for a log that is not there
	Silent time.Duration // for a log that does not grow and has no end
	Grace  time.Duration // for the sink, after the end of the log or of ctx
}

// DefaultPatience is that of the command. Kubernetes allows a process 30 s to end.
var DefaultPatience = Patience{Appear: 10 * time.Minute, Silent: 30 * time.Minute, Grace: 20 * time.Second}

// Follower sends a run log to a sink.
type Follower struct {
	Path     string // of the log
	Follow   bool   // wait for the end of the job; else the log as it is now
	To       Target
	Log      *slog.Logger
	Patience Patience

	sink     Sink
	log      io.ReadCloser
	known    os.FileInfo // the file that was at Path last
	tail     *runlog.Tail
	scalars  *export.Scalars
	state    *web.State
	start    runlog.Start
	run      string
	rows     []Row
	seen     int64 // rows of this log so far
	at       position
	here     place // of the line that is processed
	read     place // of the last line that this or an earlier process has read
	fresh    bool  // here is beyond read
	thinned  bool
	position *os.File
	givenUp  bool  // rows are counted only
	unsent   int64 // rows since then
	deadline time.Time
	over     bool
}

// position is what was delivered of a log.
type position struct {
	Run      string `json:"run"`
	Rows     int64  `json:"rows"`  // that need not be sent again, with those that were rejected
	Lines    place  `json:"lines"` // that made them
	Rejected int64  `json:"rejected"`
	Over     bool   `json:"over"` // the sink knows that the job has ended
}

// place is where a line is in a log: --log-max changes numbers of lines, but not these.
type place struct {
	Droppable int64 `json:"droppable"` // lines that --log-max may replace by a gap, so far, with those that it has
	Kept      int64 `json:"kept"`      // other lines so far, without gaps
}

// Outcome is what a Follower has done.
type Outcome struct {
	Sent     int64 // rows
	Before   int64 // rows that an earlier process sent
	Rejected int64 // by the sink, with those of earlier processes
	Unsent   int64 // could not be delivered; the next process sends them
	Lines    int64 // that the log had no room for (--log-max) before they were read
}

// String is the outcome for people.
func (o Outcome) String() string {
	text := fmt.Sprintf("%d rows sent", o.Sent)
	if o.Before > 0 {
		text += fmt.Sprintf(", %d by an earlier process", o.Before)
	}
	text += fmt.Sprintf(", %d lost", o.Rejected+o.Unsent)
	if o.Rejected > 0 {
		text += fmt.Sprintf("; %d were rejected", o.Rejected)
	}
	if o.Unsent > 0 {
		text += fmt.Sprintf("; %d were not delivered: the same command sends them later", o.Unsent)
	}
	if o.Lines > 0 {
		text += fmt.Sprintf("; %d lines were dropped by --log-max before they were read", o.Lines)
	}
	return text
}

// Run sends the log until its end, the end of ctx, or an error that trying again cannot mend. An error has an exit
// code; rows that were not delivered are one.
func (f *Follower) Run(ctx context.Context) (o Outcome, err error) {
	if err := f.wait(ctx); err != nil {
		return o, err
	}
	if err := f.lock(); err != nil {
		return o, err
	}
	defer f.position.Close()
	if f.sink, err = f.To.New(); err != nil {
		return o, err
	}
	defer func() { err = errors.Join(err, f.sink.Close()) }()
	for {
		another, err := f.one(ctx, &o)
		if !another {
			return o, err
		}
		f.Log.Info("another job began in this folder", "sink", f.To.Name, "earlier", o.String())
	}
}

// wait waits until there is a log.
func (f *Follower) wait(ctx context.Context) error {
	end, said := time.Now().Add(f.Patience.Appear), false
	for {
		_, err := os.Stat(f.Path)
		if err == nil {
			return nil
		}
		if !f.Follow || !errors.Is(err, fs.ErrNotExist) || time.Now().After(end) {
			return job.FileError(err, fs.ErrInvalid)
		}
		if !said {
			said = true
			f.Log.Info("waiting for the run log", "path", f.Path, "at_most", f.Patience.Appear)
		}
		if !sleep(ctx, pollEvery) {
			return job.FileError(err, fs.ErrInvalid)
		}
	}
}

// lock opens the file that has the position, which no other process may use meanwhile.
func (f *Follower) lock() error {
	name := f.Path + ".sink-" + f.To.id()
	p, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return job.WriteError(fmt.Errorf("cannot keep beside the log what was sent: %w", err))
	}
	if err := durable.TryLock(p); err != nil && !errors.Is(err, errors.ErrUnsupported) {
		p.Close()
		return &Fatal{fmt.Errorf("another process sends %s to %s (%s is locked): end it first", f.Path, f.To.Name, name), exitcode.Usage}
	}
	f.position = p
	return nil
}

// keep writes the position.
func (f *Follower) keep() error {
	b, err := json.Marshal(f.at)
	if err != nil {
		return err
	}
	b = append(b, '\n')
	if _, err = f.position.WriteAt(b, 0); err == nil {
		err = f.position.Truncate(int64(len(b)))
	}
	if err != nil {
		return job.WriteError(err)
	}
	return nil
}

// begin is called with the first line.
func (f *Follower) begin(s runlog.Start, o *Outcome) {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %s", s.Job, s.Time.UTC().Format(time.RFC3339Nano)))
	f.start, f.run = s, hex.EncodeToString(sum[:6])
	if f.at.Run == f.run { // the log was opened again
		return
	}
	b := make([]byte, 4<<10)
	n, _ := f.position.ReadAt(b, 0)
	var was position
	if json.Unmarshal(b[:n], &was) == nil && was.Run == f.run {
		f.at = was
		o.Before += was.Rows - was.Rejected
		o.Rejected += was.Rejected
	} else {
		f.at = position{Run: f.run}
	}
	f.read = f.at.Lines
}

// one sends one log. another: a new job has written a log of this name since.
func (f *Follower) one(ctx context.Context, o *Outcome) (another bool, err error) {
	if err := f.open(); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, f.log.Close()) }()
	grown := time.Now()
	for {
		before := f.seen
		err := f.tail.Next(func(l runlog.Line) error { return f.line(ctx, l, o) })
		var thin *parts.ThinnedError
		if errors.As(err, &thin) { // this process was too far behind
			if err := f.flush(ctx, o); err != nil {
				return false, err
			}
			f.log.Close()
			if err := f.open(); err != nil {
				return false, err
			}
			continue
		}
		if err != nil {
			return false, err
		}
		if err := f.flush(ctx, o); err != nil {
			return false, err
		}
		if f.seen > before {
			grown = time.Now()
		}
		ended := f.over || !f.Follow || ctx.Err() != nil
		silent := !ended && time.Since(grown) > f.Patience.Silent
		if !ended && !silent {
			if another, err = f.replaced(); err != nil || another {
				break
			}
			sleep(ctx, pollEvery)
			continue
		}
		if silent {
			err = &Fatal{fmt.Errorf("%s has not grown for %v and has no end: its job was killed, or hangs; the same command continues", f.Path, f.Patience.Silent), exitcode.Restart}
		}
		if err == nil {
			err = f.finish(ctx, o)
		}
		return false, err
	}
	if err == nil {
		err = f.finish(ctx, o)
	}
	return another && err == nil, err
}

// finish says how many rows were not delivered.
func (f *Follower) finish(ctx context.Context, o *Outcome) error {
	o.Unsent += f.unsent
	if f.over && !f.at.Over && !f.givenUp {
		if err := f.deliver(ctx, nil, true, o); err != nil {
			return err
		}
		if f.at.Over = !f.givenUp; f.at.Over {
			if err := f.keep(); err != nil {
				return err
			}
		}
	}
	if f.givenUp {
		return &Fatal{fmt.Errorf("%s did not answer for %v after the end: %d rows and the last state were not delivered; the same command sends them later", f.To.Name, f.Patience.Grace, f.unsent), exitcode.Lost}
	}
	return nil
}

func (f *Follower) open() error {
	in, err := parts.Follow(f.Path)
	if err != nil {
		return job.FileError(err, fs.ErrInvalid)
	}
	if f.known, err = os.Stat(f.Path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		in.Close()
		return job.FileError(err, fs.ErrInvalid)
	}
	var r io.Reader = in
	if in.Packed() {
		if r, err = unpack.Reader(in); err != nil {
			in.Close()
			return fmt.Errorf("%s: %w", f.Path, err)
		}
	}
	f.log, f.tail, f.scalars, f.state, f.thinned = in, runlog.NewTail(r, f.Path), export.NewScalars(scalarsEvery), web.NewState(), in.Thinned()
	f.state.Tell = func(e web.Event) { f.row(e.At, Row{Event: &e}) }
	f.rows, f.seen, f.over, f.here = nil, 0, false, place{}
	return nil
}

// line processes the next line of the log.
func (f *Follower) line(ctx context.Context, l runlog.Line, o *Outcome) error {
	switch e := l.Entry.(type) {
	case runlog.Record, runlog.Fire, runlog.Noise:
		f.here.Droppable++
	case runlog.Gap:
		n := e.Records + e.Fires + e.Noises
		f.here.Droppable += n
		o.Lines += min(max(f.here.Droppable-f.read.Droppable, 0), n) // a part of them may have been read before
	case runlog.Start:
		f.here.Kept++
		f.begin(e, o)
	case runlog.Summary:
		f.here.Kept++
		f.over = true
	default:
		f.here.Kept++
	}
	f.fresh = f.here.Droppable > f.read.Droppable || f.here.Kept > f.read.Kept
	f.read.Droppable, f.read.Kept = max(f.read.Droppable, f.here.Droppable), max(f.read.Kept, f.here.Kept)
	if err := f.state.Line(l); err != nil {
		return err
	}
	f.scalars.Line(l, func(s export.Scalar) { f.row(s.At, Row{Scalar: &s}) })
	if len(f.rows) >= mostRows {
		return f.flush(ctx, o)
	}
	return nil
}

// row takes a row, unless it was delivered before.
func (f *Follower) row(at time.Duration, r Row) {
	if !f.sink.Takes(r) {
		return
	}
	f.seen++
	if f.thinned && !f.fresh || !f.thinned && f.seen <= f.at.Rows {
		return
	}
	r.Time = f.start.Time.Add(at)
	f.rows = append(f.rows, r)
}

// flush delivers what was read.
func (f *Follower) flush(ctx context.Context, o *Outcome) error {
	rows := f.rows
	f.rows = nil
	if len(rows) == 0 && f.run != "" && !f.givenUp && !f.at.Over {
		return f.deliver(ctx, nil, false, o)
	}
	for len(rows) > 0 {
		n := 1
		for n < len(rows) && n < mostRows && (rows[n].Scalar == nil) == (rows[0].Scalar == nil) {
			n++
		}
		if n == len(rows) {
			f.at.Lines = f.read // deliver keeps it
		}
		if f.givenUp {
			f.unsent += int64(n)
		} else if err := f.deliver(ctx, rows[:n], false, o); err != nil {
			return err
		}
		rows = rows[n:]
	}
	return nil
}

// deliver sends rows until the sink has answered, or time is up.
func (f *Follower) deliver(ctx context.Context, rows []Row, over bool, o *Outcome) error {
	b := Batch{Start: f.start, Run: f.run, Rows: rows, View: f.state.View(), Over: over, Lost: f.at.Rejected}
	down := time.Time{}
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		err := f.try(ctx, b)
		var rejected *Rejected
		var fatal *Fatal
		switch {
		case errors.As(err, &fatal):
			return fmt.Errorf("%s: %w", f.To.Name, err)
		case errors.As(err, &rejected):
			f.Log.Warn("sink rejected rows", "sink", f.To.Name, "rows", rejected.Rows, "why", rejected.Why)
			f.at.Rejected += int64(rejected.Rows)
			o.Rejected += int64(rejected.Rows)
			o.Sent -= int64(rejected.Rows)
			err = nil
		}
		if err == nil {
			if !down.IsZero() {
				f.Log.Info("sink answers again", "sink", f.To.Name, "after", time.Since(down).Round(time.Millisecond))
			}
			if len(rows) == 0 {
				return nil
			}
			o.Sent += int64(len(rows))
			f.at.Rows += int64(len(rows))
			return f.keep()
		}
		if down.IsZero() {
			down = time.Now()
			f.Log.Warn("sink does not answer; the job is not affected, and the rows stay in the log", "sink", f.To.Name, "err", err)
		}
		if f.atEnd(ctx) {
			if f.deadline.IsZero() {
				f.deadline = time.Now().Add(f.Patience.Grace)
			}
			if time.Now().After(f.deadline) {
				f.givenUp = true
				f.unsent += int64(len(rows))
				return nil
			}
			wait = min(wait, max(time.Until(f.deadline), time.Millisecond))
			time.Sleep(wait)
			continue
		}
		sleep(ctx, wait)
	}
}

// try sends a batch once. The end of ctx leaves it some time.
func (f *Follower) try(ctx context.Context, b Batch) error {
	c, cancel := context.WithTimeout(context.WithoutCancel(ctx), f.To.timeout())
	defer cancel()
	if !f.deadline.IsZero() {
		d, stop := context.WithDeadline(c, maxTime(f.deadline, time.Now().Add(firstRetry)))
		defer stop()
		c = d
	}
	return f.sink.Send(c, b)
}

func maxTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// atEnd says that no more rows will come, so that waiting for the sink has to end.
func (f *Follower) atEnd(ctx context.Context) bool {
	if f.over || !f.Follow || ctx.Err() != nil {
		return true
	}
	in, err := os.Open(f.Path)
	if err != nil {
		return false
	}
	defer in.Close()
	_, ended, err := runlog.ReadSummary(in, f.Path)
	return err == nil && ended
}

// replaced says that another job has begun a log at the path: not only the next part of this one.
func (f *Follower) replaced() (bool, error) {
	now, err := os.Stat(f.Path)
	if err != nil || f.known != nil && os.SameFile(now, f.known) {
		return false, nil // it may be in the middle of a rotation
	}
	in, err := os.Open(f.Path)
	if err != nil {
		return false, nil
	}
	defer in.Close()
	other := false
	stop := errors.New("enough")
	err = runlog.NewTail(in, f.Path).Next(func(l runlog.Line) error {
		if s, ok := l.Entry.(runlog.Start); ok {
			other = !s.Time.Equal(f.start.Time)
		}
		return stop
	})
	if err != nil && !errors.Is(err, stop) { // a later part begins in the middle
		f.known = now
		return false, nil
	}
	if errors.Is(err, stop) {
		f.known = now
	}
	return other, nil
}

// sleep waits; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
