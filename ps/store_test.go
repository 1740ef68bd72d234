package ps

import (
	"slices"
	"strings"
	"testing"

	"star/ps/replica"
	"star/ps/rule"
	"star/transport/wire"
)

// Where a worker goes on before an update is made, several gradients of it wait: each is used or dropped by its step.
func TestSeveralOfOneWorker(t *testing.T) {
	s := NewShard(1, descent(1), keepAll{})
	s.Load([]float32{0}, 0)
	s.Store(3)
	push := func(step int64, g float32) error {
		return s.Push(rule.Gradient{Worker: 1, Step: step, Vec: []float32{g}})
	}
	for step, g := range []float32{1, 10, 100} {
		if err := push(int64(step), g); err != nil {
			t.Fatal(err)
		}
	}
	if err := push(3, 1000); err == nil || !strings.Contains(err.Error(), "still waiting") {
		t.Errorf("a fourth one: %v", err)
	}
	if step, ok := s.Pending(1); !ok || step != 2 || len(s.Waiting()) != 3 {
		t.Errorf("step %d of %d is the last one", step, len(s.Waiting()))
	}
	if err := s.Push(rule.Gradient{Worker: 0, Step: 7, Vec: []float32{5}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Fire(&wire.Fire{Seq: 1, Version: 1, Gradients: []wire.Gradient{{Worker: 1, Step: 0, Weight: 1}, {Worker: 0, Step: 7, Weight: 1}, {Worker: 1, Step: 2, Weight: 1}}}); err != nil {
		t.Fatal(err)
	}
	if err := s.Fire(&wire.Fire{Seq: 2, Version: 2, Gradients: []wire.Gradient{{Worker: 1, Step: 2, Weight: 1}}}); err == nil || !strings.Contains(err.Error(), "has named already") {
		t.Errorf("step 2 twice: %v", err)
	}
	ev, ok := s.Next()
	if !ok || ev.Params[0] != -106 {
		t.Fatalf("%+v, want -(1 + 5 + 100)", ev)
	}
	if ws := ev.Workers; len(ws) != 2 || ws[0] != 0 || ws[1] != 1 {
		t.Errorf("parameters go to %v, want once to each of 0 and 1", ws)
	}
	if got := s.Waiting(); len(got) != 1 || got[0].Step != 1 {
		t.Fatalf("%+v wait, want step 1", got)
	}
	if err := push(1, 3); err == nil {
		t.Error("step 1 is stored twice")
	}
	if err := push(3, 7); err != nil {
		t.Fatal(err)
	}
	if err := s.Fire(&wire.Fire{Seq: 2, Version: 1, Dropped: []wire.Gradient{{Worker: 1, Step: 1}}}); err != nil {
		t.Fatal(err)
	}
	s.Forget(1) // but what a firing names
	if got := s.Waiting(); len(got) != 1 || got[0].Step != 1 {
		t.Fatalf("%+v wait, want the one that is named", got)
	}
	if ev, ok := s.Next(); !ok || ev.Version != 1 || len(s.Waiting()) != 0 || !slices.Equal(ev.Params, []float32{-106}) {
		t.Errorf("%+v, %d wait", ev, len(s.Waiting()))
	}
}

// A copy of a shard waits for the norm of an update that the primary has made: the gradients that workers have computed
// since come to it meanwhile.
func TestCopyThatIsBehind(t *testing.T) {
	s := NewShard(1, descent(1), keepAll{})
	s.Load([]float32{0}, 0)
	h := &host{shard: s}
	h.copying.Copy, h.copying.steps = replica.NewCopy(1, replica.View{Term: 1, Primary: 0, Followers: []int{1}}, 0), []int64{-1}
	gradient := func(step int64) rule.Gradient {
		return rule.Gradient{Worker: 0, Step: step, Vec: []float32{float32(step + 1)}}
	}
	store := func(step int64) {
		t.Helper()
		if err := h.store(gradient(step)); err != nil {
			t.Fatal(err)
		}
	}
	fire := func(seq, step int64) {
		t.Helper()
		if err := s.Fire(&wire.Fire{Seq: seq, Version: seq, NormFirst: true, Gradients: []wire.Gradient{{Worker: 0, Step: step, Weight: 1}}}); err != nil {
			t.Fatal(err)
		}
	}
	store(0)
	fire(1, 0)
	store(1)
	if err := h.store(gradient(2)); err == nil || !strings.Contains(err.Error(), "still waiting") {
		t.Errorf("two that no firing names: %v", err)
	}
	if h.again(gradient(2)) || !h.again(gradient(1)) {
		t.Error("what was refused counts as stored, or what was stored does not")
	}
	fire(2, 1)
	store(2)
	for seq := range int64(2) {
		if ev, ok := s.Next(); !ok || ev.Kind != Summed {
			t.Fatalf("%+v", ev)
		}
		if err := s.Apply(seq+1, 1, 1); err != nil {
			t.Fatal(err)
		}
		if ev, ok := s.Next(); !ok || ev.Kind != Updated || ev.Version != seq+1 {
			t.Fatalf("%+v", ev)
		}
	}
	if got := s.Waiting(); len(got) != 1 || got[0].Step != 2 || s.Params()[0] != -3 {
		t.Errorf("%+v wait, the parameter is %v", got, s.Params()[0])
	}
}
