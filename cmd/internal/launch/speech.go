package launch

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"time"
)

// speech reads a child's output and keeps its last line.
type speech struct {
	mu   sync.Mutex
	last string
	done bool // a worker has logged that it finished
}

// tracebackTime is how long to wait for the rest of a traceback. Python writes it at once.
const tracebackTime = time.Second

// read passes every non-empty line to say, and a Python traceback as one block, so that those of several children do
// not mix. It returns when from ends.
func (s *speech) read(from io.Reader, say func(block []string)) {
	lines := bufio.NewReader(from)
	limit, _ := from.(interface{ SetReadDeadline(time.Time) error }) // nil: from is complete already
	var block []string
	flush := func() {
		if len(block) > 0 {
			say(block)
			block = nil
		}
	}
	begun := ""
	for {
		if limit != nil {
			var until time.Time
			if len(block) > 0 {
				until = time.Now().Add(tracebackTime)
			}
			limit.SetReadDeadline(until)
		}
		text, err := lines.ReadString('\n')
		if begun += text; errors.Is(err, os.ErrDeadlineExceeded) {
			flush()
			continue
		}
		if line := strings.TrimRight(begun, "\n"); line != "" {
			s.mu.Lock()
			s.last = line
			s.done = s.done || finishes(line)
			s.mu.Unlock()
			begins := strings.HasPrefix(line, "Traceback (most recent call last)")
			inside := len(block) > 0 && strings.HasPrefix(line, " ")
			if begins {
				flush()
			}
			if block = append(block, line); !begins && !inside {
				flush()
			}
		}
		if begun = ""; err != nil {
			flush()
			return
		}
	}
}

// finishes reports whether a line announces the normal end of a worker, as text or JSON.
func finishes(line string) bool {
	if strings.HasPrefix(line, "finished steps=") {
		return true
	}
	var parsed struct{ Msg, Role string }
	return strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &parsed) == nil && parsed.Msg == "finished" && parsed.Role == "worker"
}

// finished reports whether the child has printed that its worker ended normally.
func (s *speech) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// words returns the last line that the child has printed, without the program's name. Of a JSON line it is the message.
func (s *speech) words() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := s.last
	var line struct{ Msg string }
	if json.Unmarshal([]byte(text), &line) == nil && line.Msg != "" {
		text = line.Msg
	}
	return strings.TrimPrefix(strings.TrimPrefix(text, "star: "), "star-chaos: ")
}
