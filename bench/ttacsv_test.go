package bench

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
)

// The table has what JSON has, under the same names.
func TestWriteTTA(t *testing.T) {
	took := 12.5
	rs := []TTAResult{
		{Scenario: "a, b", Bound: 0.1, Task: "t", Arch: "ps", Method: `"x"`, Seed: 1<<64 - 1, Rate: 1e-9, TTA: &took, Reached: true, Updates: 1 << 40, Links: true, Staleness: 1.0 / 3, Switches: 2},
		{Scenario: "c"},
	}
	var b strings.Builder
	if err := WriteTTA(&b, rs); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(strings.NewReader(b.String())).ReadAll()
	if err != nil || len(rows) != 3 {
		t.Fatalf("%v, %q", err, b.String())
	}
	for i, r := range rs {
		var of map[string]any
		text, _ := json.Marshal(r)
		d := json.NewDecoder(strings.NewReader(string(text)))
		d.UseNumber()
		d.Decode(&of)
		if len(of) != len(rows[0]) {
			t.Errorf("%d columns, %d fields", len(rows[0]), len(of))
		}
		for k, name := range rows[0] {
			want := fmt.Sprint(of[name])
			if of[name] == nil {
				want = ""
			}
			if got := rows[i+1][k]; got != want && (name != "lr" || got != "1e-09") {
				t.Errorf("%s of run %d: %s, want %s", name, i, got, want)
			}
		}
	}
}

// An interval is given for five runs and more, and no time is below 0, in no number and in no picture.
func TestIntervalsOfTimes(t *testing.T) {
	of := func(method string, times ...float64) (rs []TTAResult) {
		for i, took := range times {
			rs = append(rs, TTAResult{Scenario: "slow", Bound: 0.5, Task: "t", Arch: "ps", Method: method, Seed: uint64(i), TTA: &times[i], Reached: true, Accuracy: took / 1000})
		}
		return rs
	}
	if g := TTAGroups(of("ssgd", 100, 140))[0]; g.Mean != 120 || !math.IsNaN(g.Half) || !math.IsNaN(g.AccuracyHalf) {
		t.Errorf("of two runs: %v ± %v, %v ± %v", g.Mean, g.Half, g.Accuracy, g.AccuracyHalf)
	}
	wide := slices.Concat(of("ssgd", 1, 1, 1, 1, 400), of("auto", 1, 1, 1, 1, 300))
	if g := TTAGroups(wide)[0]; !(g.Half > g.Mean) {
		t.Errorf("of five runs: %v ± %v", g.Mean, g.Half)
	}
	for _, m := range TTAMeasures(wide) {
		if m.Low != 0 || !(m.High > m.Value) {
			t.Errorf("%s: %v to %v", m.Name, m.Low, m.High)
		}
	}
	p, err := plotCases(TTACases(wide))
	if err != nil {
		t.Fatal(err)
	}
	if p.Y.Min != 0 {
		t.Errorf("the picture begins at %v", p.Y.Min)
	}
}
