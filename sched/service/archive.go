package service

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"star/internal/exitcode"
	"star/sched/live"
)

// A job that has ended leaves the queue after Options.Keep: its status is appended to a file, a line per job, and then
// the queue forgets it. A job is in the file before it leaves the queue, and may be there twice if a service ended in
// between or another one took over: the last line counts.

const (
	archiveName  = "archive.jsonl"
	mostArchived = 1000 // jobs per event
)

// archiveFile is next to the jobs, where all services of a queue find it.
func (s *Service) archiveFile() string {
	if s.o.Peers != nil {
		return filepath.Join(s.o.Jobs, archiveName)
	}
	return filepath.Join(s.o.Dir, archiveName)
}

// archive removes jobs from the queue that ended long enough ago.
func (s *Service) archive() {
	now := s.now()
	if s.o.Keep <= 0 || s.lost {
		return
	}
	e, ok := s.q.Archival(now-s.o.Keep.Seconds(), mostArchived, now)
	if !ok {
		return
	}
	var lines bytes.Buffer
	for _, name := range e.Jobs {
		if err := json.NewEncoder(&lines).Encode(s.jobStatus(s.q.Job(name), now)); err != nil {
			s.keeps(err)
			return
		}
	}
	if err := appendLines(s.archiveFile(), lines.Bytes()); err != nil {
		s.keeps(coded{fmt.Errorf("cannot write the archive: %w; jobs that have ended stay in the queue until it can be written", err), exitcode.Unwritable})
		return
	}
	if s.commit(e) != nil {
		return
	}
	for _, name := range e.Jobs {
		delete(s.ends, name)
	}
}

// appendLines appends lines to a file and returns when they are on disk. If the file's last line has no end, because a
// machine stopped, it gets one first.
func appendLines(name string, lines []byte) error {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	var last [1]byte
	if i, err := f.Stat(); err != nil {
		return err
	} else if _, err := f.ReadAt(last[:], i.Size()-1); i.Size() > 0 && err == nil && last[0] != '\n' {
		lines = append([]byte("\n"), lines...)
	}
	if _, err := f.Write(lines); err != nil {
		return err
	}
	return f.Sync()
}

// ReadArchive reads the jobs that have left a queue, in the order in which they left. Of several lines of a job the
// last one counts. torn is the number of incomplete lines: their jobs were written again, or are still in the queue.
func ReadArchive(name string) (jobs []JobStatus, torn int, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, 0, nil
	} else if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	type key struct {
		job       string
		submitted float64
	}
	at := map[key]int{}
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadBytes('\n')
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, 0, err
		}
		var j JobStatus
		if text := bytes.TrimSpace(line); len(text) > 0 {
			if json.Unmarshal(text, &j) != nil || j.Job == "" {
				torn++
			} else if i, ok := at[key{j.Job, j.Submitted}]; ok {
				jobs[i] = j
			} else {
				at[key{j.Job, j.Submitted}] = len(jobs)
				jobs = append(jobs, j)
			}
		}
		if err != nil {
			return jobs, torn, nil
		}
	}
}

// past reports whether a job of that name has had a folder: a job that left the queue keeps its name.
func (s *Service) past(name string) bool {
	_, err := os.Stat(filepath.Join(s.o.Jobs, name))
	return err == nil
}

// compactAt is the smallest number of bytes of events that a saved queue replaces; it also must not be smaller than the
// saved queue.
const compactAt = 1 << 20

// compact replaces the events of a queue's file by the queue that they lead to.
func (s *store) compact() error {
	text, err := live.Fold(s.head.Queue, fresh(s.hosts), s.since)
	if err != nil {
		return err
	}
	h := head{savedFormat, s.head.Time, thisProgram(), text}
	line, err := json.Marshal(h)
	if err != nil {
		return err
	}
	if err := s.file.Replace(append(line, '\n')); err != nil {
		return err
	}
	s.head, s.since, s.base = h, nil, s.file.Size
	return nil
}
