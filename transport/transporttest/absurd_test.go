package transporttest

import (
	"testing"

	"star/transport/wire"
)

// Each kind of the protocol has its message here, so that tests that send absurd messages send all of them.
func TestEveryMessage(t *testing.T) {
	seen := map[wire.Kind]bool{}
	for _, m := range Messages {
		if seen[m.Kind()] {
			t.Errorf("%v is there twice", m.Kind())
		}
		seen[m.Kind()] = true
	}
	for k := wire.Kind(1); k.Valid(); k++ {
		if !seen[k] {
			t.Errorf("there is no %v", k)
		}
	}
}

func TestAbsurd(t *testing.T) {
	seen := map[string]wire.Message{}
	for name, m := range Absurd(Fill(wire.Tally{}, map[string]any{"Worker": 3, "Step": 41})) {
		if seen[name] != nil {
			t.Errorf("%s twice", name)
		}
		seen[name] = m
	}
	for name, want := range map[string]int64{"tally.Worker=-1": -1, "tally.Version=4611686018427387904": 3, "tally.Carried[0].Weight=NaN": 3} {
		m, ok := seen[name].(wire.Tally)
		if !ok || int64(m.Worker) != want {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if m := seen["tally.Carried[0].Weight=NaN"].(wire.Tally); m.Carried[0].Step != 41 || m.Carried[0].Weight == m.Carried[0].Weight {
		t.Errorf("%+v", m)
	}
	n := 0
	for _, m := range Messages {
		for range Absurd(m) {
			n++
		}
	}
	if n < 1000 {
		t.Errorf("%d messages", n)
	}
}
