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

// speech reads what a child prints, and keeps its last line.
type speech struct {
	mu   sync.Mutex
	last string
	done bool // a worker has logged that it finished
}

// tracebackTime is how long the rest of a traceback is waited for. Python writes it in one go.
const tracebackTime = time.Second

// read hands every line that is not empty to say, and a traceback of Python as one block, so that those of several children do not mix.
// It returns when from has ended.
func (s *speech) read(from io.Reader, say func(block []string)) {
	lines := bufio.NewReader(from)
	limit, _ := from.(interface{ SetReadDeadline(time.Time) error }) // nil: all of it is there already
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

// finishes says whether a line is that of a worker which has ended in good order, as text or JSON.
func finishes(line string) bool {
	if strings.HasPrefix(line, "finished steps=") {
		return true
	}
	var parsed struct{ Msg, Role string }
	return strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &parsed) == nil && parsed.Msg == "finished" && parsed.Role == "worker"
}

// finished says whether the child has printed that its worker ended in good order.
func (s *speech) finished() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.done
}

// words is the last line that the child has printed, without what names the program. Of a line in JSON it is the message.
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
