package explain

import (
	"slices"
	"strings"
	"testing"
)

// Gradients that did not belong are reported once for each worker and cause.
func TestPoison(t *testing.T) {
	l := newLog("ps")
	l.rounds(10, 1, 1, 1, 1)
	l.say(`{"type":"poison","t":%g,"worker":1,"step":4,"cause":"exploding","value":5000,"policy":"skip"}`, l.t)
	l.say(`{"type":"poison","t":%g,"worker":2,"step":5,"cause":"not-finite","value":null,"where":"shards [1]","policy":"fatal"}`, l.t)
	l.say(`{"type":"poison","t":%g,"worker":3,"step":5,"cause":"flipped","value":-0.25,"policy":"skip"}`, l.t)
	l.say(`{"type":"poison","t":%g,"worker":1,"step":8,"cause":"exploding","value":2e9,"policy":"skip"}`, l.t)
	l.say(`{"type":"poison","t":%g,"worker":3,"step":9,"cause":"flipped","value":0.5,"over":true,"policy":"skip"}`, l.t)
	l.say(`{"type":"poison","t":%g,"worker":3,"step":9,"cause":"flipped","value":-0.5,"policy":"skip"}`, l.t)
	var b strings.Builder
	if err := l.story(t).Text(&b, View{}); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "poison") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	want := []string{
		"w1 poison, it 4–8: 2 exploding gradients (up to 2e+09 times the median norm) → left out",
		"w2 poison, it 5–5: 1 gradients not finite, in shards [1] → the end of the job",
		"w3 poison, it 5–9: gradients against all others (mean cosine -0.25) → left out",
		"w3 poison, it 9 to the end: gradients against all others (mean cosine -0.50) → left out",
	}
	if !slices.Equal(got, want) {
		t.Errorf("told:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
