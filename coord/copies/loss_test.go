package copies

import (
	"testing"

	"star/ps/replica"
)

func TestLost(t *testing.T) {
	one := Copies{}
	two, err := Place(2, []replica.Server{{Host: "a"}, {Host: "b"}, {Host: "c"}}, []int{0, 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		copies *Copies
		loss   Loss
		want   Consequence
	}{
		{"before shards are assigned", &one, Loss{HasShards: true}, Free},
		{"with the only copy", &one, Loss{Rank: 1, Begun: true, Assigned: true, HasShards: true}, Fatal},
		{"before the training begins", &one, Loss{Rank: 1, Assigned: true, HasShards: true}, Fatal},
		{"a candidate", &one, Loss{Begun: true, Assigned: true, Replaceable: true, Candidate: true}, Nothing},
		{"a candidate beside copies", &two, Loss{Begun: true, Assigned: true, Replaceable: true, Candidate: true}, Nothing},
		{"a spare one, which copies may need", &two, Loss{Rank: 2, Begun: true, Assigned: true, Replaceable: true}, Continue},
		{"a spare one without copies", &one, Loss{Rank: 1, Begun: true, Assigned: true}, Idle},
		{"the coordinator's own, without shards", &one, Loss{Begun: true, Assigned: true}, Fatal},
		{"with a copy", &two, Loss{Rank: 1, Begun: true, Assigned: true, HasShards: true}, Continue},
		{"with a copy, and it coordinates", &two, Loss{Begun: true, Assigned: true, HasShards: true}, Fatal},
		{"with a copy, and another one coordinates", &two, Loss{Begun: true, Assigned: true, HasShards: true, Replaceable: true}, Continue},
		{"with a copy after a takeover", &two, Loss{Rank: 1, Trained: true, Assigned: true, HasShards: true}, Continue},
		{"with a copy that is loaded elsewhere", &two, Loss{Rank: 1, Assigned: true, HasShards: true, Spared: true}, Begin},
		{"with a copy that is loaded nowhere", &two, Loss{Rank: 1, Assigned: true, HasShards: true}, Fatal},
	} {
		if got := c.copies.Lost(c.loss); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
