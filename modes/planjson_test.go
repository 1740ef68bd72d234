package modes

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"star"
)

// Rules of outer steps are in JSON as in a mode's text. A plan without them has no field for them.
func TestPlanJSONOfOuterSteps(t *testing.T) {
	p, err := Parse("x=2 grace=200ms local=64 steps=speed outer=delayed(0.5,1)", 3)
	if err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(p)
	if err != nil || !strings.Contains(string(b), `"Outer":"delayed(0.5,1)","StepsBySpeed":true,"Grace":200000000`) {
		t.Errorf("%s, %v", b, err)
	}
	var got Plan
	if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, p) {
		t.Errorf("%s is read as %+v, %v", b, got, err)
	}
	if b, _ := json.Marshal(SSGD(2)); strings.Contains(string(b), "Outer") || strings.Contains(string(b), "Grace") {
		t.Errorf("a plan without outer steps is %s", b)
	}
	if err := json.Unmarshal([]byte(`{"Outer":"nesterov(2,1)"}`), &got); err == nil {
		t.Error("a momentum of 2 is read")
	}
}

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
