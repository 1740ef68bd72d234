package coord

import (
	"encoding/json"
	"testing"

	"star/coord/takeover"
	"star/modes"
	"star/transport"
	"star/transport/wire"
)

// Each life of a rank has a higher number than the earlier ones, and a successor continues with the key and higher
// numbers.
func TestPassesOfLives(t *testing.T) {
	cfg := func(d *testLease) Config {
		return Config{MaxWorkers: 2, Servers: 1, Plan: modes.SSGD(2), Batch: 8, Samples: 1000, Lease: d}
	}
	first, err := New(cfg(newTestLease(1)))
	if err != nil {
		t.Fatal(err)
	}
	other, err := New(cfg(newTestLease(1)))
	if err != nil {
		t.Fatal(err)
	}
	if first.members.Key() == "" || first.members.Key() == other.members.Key() {
		t.Fatalf("keys %q and %q", first.members.Key(), other.members.Key())
	}
	note, err := json.Marshal(Handover{Handover: takeover.Handover{Plan: modes.SSGD(2), Shards: []wire.ShardInfo{{To: 10}}, Owner: []int{0}, Key: first.members.Key()}})
	if err != nil {
		t.Fatal(err)
	}
	next := cfg(newTestLease(2))
	if next.Handover, err = ParseHandover(note); err != nil {
		t.Fatal(err)
	}
	second, err := New(next)
	if err != nil {
		t.Fatal(err)
	}
	last := int64(-1)
	for i, p := range []string{first.members.Pass(1, first.lease.Term(), 0), first.members.Pass(1, first.lease.Term(), 7), second.members.Pass(1, second.lease.Term(), 8), second.members.Pass(1, second.lease.Term(), 9)} {
		attempt, ok := transport.CheckPass(first.members.Key(), wire.RoleWorker, 1, p)
		if !ok || attempt.Number <= last || attempt.Step != []int64{0, 7, 8, 9}[i] {
			t.Errorf("pass %d: %v, %+v, after %d", i, ok, attempt, last)
		}
		last = attempt.Number
	}
}
