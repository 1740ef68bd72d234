package web

import (
	"fmt"
	"time"

	"star"
)

// Level is how bad an event is.
type Level string

// The levels.
const (
	Info  Level = "info"
	Warn  Level = "warn"
	Error Level = "error"
)

// Event is something that has happened in a job, for readers that follow it ([State.Tell]).
type Event struct {
	At     time.Duration
	Kind   string // begun, slow, recovered, slowdown, hang, mode, checkpoint, end, …
	Level  Level
	Worker star.Worker // -1: not of one worker
	Says   string      // a sentence
}

func (s *State) tell(at time.Duration, kind string, level Level, format string, a ...any) {
	s.tellOf(-1, at, kind, level, format, a...)
}

func (s *State) tellOf(w star.Worker, at time.Duration, kind string, level Level, format string, a ...any) {
	if s.Tell != nil {
		s.Tell(Event{At: at, Kind: kind, Level: level, Worker: w, Says: fmt.Sprintf(format, a...)})
	}
}
