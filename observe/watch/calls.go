package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
)

// The file that the hook writes (hook/star_calls.py): a header, the open calls, and the last call of each group.
const (
	callsMagic                            = "STARCALL"
	callsFormat                           = 1
	callsHeader, callEntry                = 256, 256
	openCalls, callGroups                 = 16, 32
	callsSize                             = callsHeader + (openCalls+callGroups)*callEntry
	stepsAt, progressAt, computingAt      = 32, 40, 48
	phaseAt, phaseSize, entryText         = 64, 64, 20
	callsPrefix                           = "calls-"
	maxDetail, maxFrames, maxChildren     = 64, 24, 8
	maxText                           int = 200
)

// Call is a collective, or another call in which ranks wait for each other. Calls of one group have numbers.
type Call struct {
	Group  string `json:"group"`
	Ranks  string `json:"ranks,omitempty"` // of the group, as 0-3,8
	Number int64  `json:"number"`
	Kind   string `json:"kind"`             // all_reduce
	Detail string `json:"detail,omitempty"` // float32[25000]

	Token     int64   `json:"token,omitempty"`     // of an open call: another one for the next
	Age       float64 `json:"age,omitempty"`       // of an open call: seconds for which it was seen
	Computing bool    `json:"computing,omitempty"` // the rank does not wait yet: it is in its own part of a backward pass
	Open      bool    `json:"open,omitempty"`      // of the flight recorder of NCCL: it is not over
}

// name is the call in words.
func (c Call) name() string {
	text := c.Kind
	if c.Number > 0 {
		text += fmt.Sprintf(" #%d", c.Number)
	}
	if c.Detail != "" {
		text += " " + c.Detail
	}
	return text
}

// uneven are kinds with operands that may differ between ranks.
var uneven = []string{"all_to_all", "all_to_all_single", "all_gather_object", "gather", "scatter", "broadcast_object_list", "all_gather", "reduce_scatter"}

// differs reports whether two calls of one number cannot be the same one.
func (c Call) differs(o Call) bool {
	return c.Kind != o.Kind || c.Detail != o.Detail && !slices.Contains(uneven, c.Kind)
}

// members are the ranks of the call's group; nil if they are not known.
func (c Call) members() (out []int) {
	for part := range strings.SplitSeq(c.Ranks, ",") {
		a, b, two := strings.Cut(part, "-")
		from, err := strconv.Atoi(a)
		to := from
		if two && err == nil {
			to, err = strconv.Atoi(b)
		}
		if err != nil || from < 0 || to >= MaxWorld || to < from {
			return nil
		}
		for r := from; r <= to && len(out) < MaxWorld; r++ {
			out = append(out, r)
		}
	}
	return out
}

// Child is a process that a rank has started, such as a worker of its DataLoader.
type Child struct {
	PID     int    `json:"pid"`
	Process string `json:"process,omitempty"` // as of State
	Line    string `json:"line,omitempty"`
}

// State is what a collector knows of a rank that makes no progress. Ages are in seconds.
type State struct {
	World    int     `json:"world"`
	Quiet    float64 `json:"quiet"`              // since it finished a step, or was first seen
	Still    float64 `json:"still"`              // since it finished a step, a call, a batch of its loader or a forward pass
	Phase    string  `json:"phase,omitempty"`    // star_train.watch.phase
	Process  string  `json:"process,omitempty"`  // stopped, ended, disk; empty: it runs or sleeps
	Kernel   string  `json:"kernel,omitempty"`   // what the kernel says that it waits in
	CPU      float64 `json:"cpu"`                // processors that it and its children used or, each first thread, waited for
	IO       float64 `json:"io"`                 // bytes per second that it and its children read and wrote
	Open     []Call  `json:"open,omitempty"`     // the one that was entered last is the last one
	Entered  []Call  `json:"entered,omitempty"`  // the last call of each group
	Answered float64 `json:"answered,omitempty"` // age of the stack; 0: no stack came

	Line     string   `json:"line,omitempty"`
	Frames   []string `json:"frames,omitempty"`
	Threads  []string `json:"threads,omitempty"`
	Flight   []Call   `json:"flight,omitempty"`
	Children []Child  `json:"children,omitempty"` // that are stopped, ended, or have said where they are
}

// Values of Process.
const (
	processStopped = "stopped"
	processEnded   = "ended"
	processDisk    = "disk"
	processLost    = "lost" // of the head: nothing has come from its collector
)

func (s *State) valid(rank int) error {
	switch {
	case s == nil:
		return errors.New("a row of kind state without a state")
	case s.World < 1 || s.World > MaxWorld || rank >= s.World:
		return fmt.Errorf("rank %d of %d", rank, s.World)
	case !(s.Quiet >= 0 && s.Still >= 0 && s.CPU >= 0 && s.IO >= 0 && s.Answered >= 0):
		return fmt.Errorf("a state of negative ages: %v, %v, %v, %v, %v", s.Quiet, s.Still, s.CPU, s.IO, s.Answered)
	case len(s.Open) > openCalls || len(s.Entered) > callGroups || len(s.Flight) > 256 || len(s.Frames) > 64 || len(s.Threads) > 64 || len(s.Children) > 64:
		return errors.New("a state that is too long")
	}
	return nil
}

func (s *State) clean() {
	for _, t := range []*string{&s.Phase, &s.Process, &s.Kernel, &s.Line} {
		*t = cut(*t)
	}
	clean(s.Frames, s.Threads)
	cleanCalls(s.Open, s.Entered, s.Flight)
	for i := range s.Children {
		c := &s.Children[i]
		c.Process, c.Line = cut(c.Process), cut(c.Line)
	}
}

func cut(s string) string { return printable(s[:min(len(s), maxText)]) }

func clean(lists ...[]string) {
	for _, l := range lists {
		for i := range l {
			l[i] = cut(l[i])
		}
	}
}

func cleanCalls(lists ...[]Call) {
	for _, l := range lists {
		for i := range l {
			c := &l[i]
			c.Group, c.Ranks, c.Kind, c.Detail = cut(c.Group), cut(c.Ranks), cut(c.Kind), cut(c.Detail)
		}
	}
}

// callFile is what the file of one process says.
type callFile struct {
	pid             int
	rank, world     int
	steps, progress uint64
	phase           string
	open, entered   []Call
}

var errCalls = errors.New("not a file of calls of this version")

// readCalls reads the file of a process, which may be in the middle of a write: what is the same in two looks is right.
func readCalls(f io.ReaderAt) (c callFile, err error) {
	b := make([]byte, callsSize)
	if _, err := f.ReadAt(b, 0); err != nil {
		return c, err
	}
	return parseCalls(b)
}

func parseCalls(b []byte) (c callFile, err error) {
	le := binary.LittleEndian
	if len(b) != callsSize || string(b[:8]) != callsMagic || le.Uint32(b[8:]) != callsFormat {
		return c, errCalls
	}
	c.pid, c.rank, c.world = int(le.Uint64(b[16:])&0x7fffffff), int(int32(le.Uint32(b[24:]))), int(int32(le.Uint32(b[28:])))
	if c.rank < 0 || c.world < 1 || c.world > MaxWorld || c.rank >= c.world {
		return c, fmt.Errorf("rank %d of %d", c.rank, c.world)
	}
	c.steps, c.progress = le.Uint64(b[stepsAt:]), le.Uint64(b[progressAt:])
	computing := le.Uint64(b[computingAt:])
	phase, _, _ := bytes.Cut(b[phaseAt:phaseAt+phaseSize], []byte{0})
	c.phase = cut(string(phase))
	for i := range openCalls + callGroups {
		e := b[callsHeader+i*callEntry:][:callEntry]
		token, n := le.Uint64(e), le.Uint32(e[16:])
		parts := strings.Split(string(e[entryText:][:min(int(n), callEntry-entryText)]), "\x00")
		if token == 0 || len(parts) != 4 {
			continue
		}
		call := Call{Group: parts[0], Ranks: parts[1], Number: int64(le.Uint64(e[8:])), Kind: parts[2], Detail: parts[3]}
		if i < openCalls {
			call.Token, call.Computing = int64(token), token == computing
			c.open = append(c.open, call)
		} else {
			c.entered = append(c.entered, call)
		}
	}
	cleanCalls(c.open, c.entered)
	slices.SortFunc(c.open, func(a, b Call) int { return int(a.Token>>8 - b.Token>>8) })
	return c, nil
}

// openCallFiles opens the files of a folder that are not known yet.
func openCallFiles(dir string, known func(pid int) bool, open func(pid int, f *os.File)) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, e := range names {
		pid, err := strconv.Atoi(strings.TrimPrefix(e.Name(), callsPrefix))
		if !strings.HasPrefix(e.Name(), callsPrefix) || err != nil || known(pid) || !e.Type().IsRegular() {
			continue
		}
		if f, err := os.Open(dir + string(os.PathSeparator) + e.Name()); err == nil {
			open(pid, f)
		}
	}
}
