package lease

import (
	"errors"
	"testing"
	"time"
)

// elected is a lease among several processes.
type elected struct {
	note []byte
	err  error
}

func (*elected) Term() int64              { return 3 }
func (e *elected) Hold() error            { return e.err }
func (*elected) Over() <-chan struct{}    { return nil }
func (*elected) Clock() time.Duration     { return time.Hour }
func (e *elected) SetNote(b []byte) error { e.note = b; return e.err }

// A change takes effect after the processes have agreed on it; once the lease is lost nothing changes any more.
func TestPersist(t *testing.T) {
	of := new(elected)
	l := New(of)
	if !l.Replaceable() || l.Term() != 3 || !l.May() || !l.Persist(func(h *Handover) { h.Ring, h.Generation = true, 7 }) {
		t.Fatalf("%+v", l)
	}
	h, err := ParseHandover(of.note)
	if err != nil || h.Generation != 7 {
		t.Fatalf("%+v, %v", h, err)
	}
	of.err = errors.New("two of three are gone")
	if l.Persist(func(h *Handover) { h.Generation = 8 }) || !errors.Is(l.Lost(), ErrLost) || !errors.Is(l.Lost(), of.err) {
		t.Errorf("%v", l.Lost())
	}
	of.err = nil
	called := false
	if l.Persist(func(*Handover) { called = true }) || l.May() || called {
		t.Error("a lease that was lost is held again")
	}
	alone := New(nil)
	if alone.Replaceable() || !alone.May() || !alone.Persist(func(*Handover) { t.Error("a note without a successor") }) {
		t.Error("a process that no other can replace lost its lease")
	}
}

func TestParseHandover(t *testing.T) {
	for note, ok := range map[string]bool{
		`{"shards":[{}],"owner":[0]}`: true, `{"ring":true}`: true, `{"end":{}}`: true,
		`{"shards":[{}],"owner":[0,1]}`: false, `{}`: false, `{"shards":`: false,
	} {
		if _, err := ParseHandover([]byte(note)); (err == nil) != ok {
			t.Errorf("%s: %v", note, err)
		}
	}
}
