package modes

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"star"
)

// A plan is read as it was written, and with the names that four of its fields had before.
func TestPlanJSON(t *testing.T) {
	want := Plan{
		Groups:  []Group{{Members: []star.Worker{0, 1}, Quorum: 3, NonBlocking: true}},
		MaxLead: 4, Excluded: []star.Worker{2}, Micro: 8, ComputeDeadline: time.Second,
	}
	now, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	const before = `{"Groups":[{"Members":[0,1],"Quorum":3,"Again":true}],"Ahead":4,"Held":[2],"Micro":8,"Cap":1000000000}`
	for _, text := range []string{string(now), before} {
		var got Plan
		if err := json.Unmarshal([]byte(text), &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as %+v, %v; want %+v", text, got, err, want)
		}
	}
}
