package modes

import (
	"strings"
	"testing"
)

func TestWithWholeBatches(t *testing.T) {
	const batch = 32
	for _, c := range []struct{ in, want, says string }{
		{in: "ssgd", want: "ssgd"},
		{in: "x=2", want: "x=2"},
		{in: "asgd", want: "asgd"},
		{in: "ssgd local=4", want: "ssgd local=4"},
		{in: "ssgd queue=8", want: "ssgd"},
		{in: "ssgd shares=32,32,32", want: "ssgd shares=32,32,32"},
		{in: "ssgd queue=8 shares=32,32,16", says: "worker 2 mini-batches of 16 samples, which must have 32"},
		{in: "ssgd shares=64,32,32", says: "worker 0 mini-batches of 64 samples"},
		{in: "x=2 micro=4 cap=10ms", says: "micro=4 cuts mini-batches"},
	} {
		p, err := Parse(c.in, 3)
		if err != nil {
			t.Fatal(err)
		}
		switch q, err := p.WithWholeBatches(batch); {
		case c.says != "":
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s: error %v, want one with %q", c.in, err, c.says)
			}
		case err != nil || q.String() != c.want:
			t.Errorf("%s: %v, %v; want %s", c.in, q, err, c.want)
		}
	}
}
