package outer

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	for in, want := range map[string]Rule{
		"mean": {}, "nesterov": {Nesterov, 0.9, 0.7}, "nesterov(0,1)": {Nesterov, 0, 1}, "delayed(0.5,0.25)": {Delayed, 0.5, 0.25},
		"lookahead(0.9999,100)": {Lookahead, 0.9999, 100}, "nesterov(1e-7,1e-30)": {Nesterov, 1e-7, 1e-30},
	} {
		got, err := Parse(in)
		if err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
		if again, err := Parse(got.String()); err != nil || again != got {
			t.Errorf("%s is written %s and read back as %v, %v", in, got, again, err)
		}
		b, err := json.Marshal(got)
		var back Rule
		if err != nil || json.Unmarshal(b, &back) != nil || back != got {
			t.Errorf("%s as JSON is %s, read as %v", in, b, back)
		}
	}
	for in, says := range map[string]string{
		"": "not a rule", "adam": "not a rule", "nesterov(1,0.7)": "momentum 1 is not in 0..0.9999", "nesterov(-0.1,1)": "momentum -0.1",
		"nesterov(NaN,1)": "momentum NaN", "nesterov(0.9,0)": "rate 0", "nesterov(0.9,NaN)": "rate NaN", "nesterov(0.9,101)": "rate 101",
		"nesterov(0.9)": "MOMENTUM,RATE", "nesterov(0.9,0.7": "MOMENTUM,RATE", "nesterov(a,b)": "MOMENTUM,RATE", "mean(1,2)": "not a rule", "(1,2)": "not a rule",
	} {
		if o, err := Parse(in); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, %v; want an error with %q", in, o, err, says)
		}
	}
}

func ExampleParse() {
	o, err := Parse("nesterov")
	fmt.Println(o, err)
	_, err = Parse("nesterov(1.5,0.7)")
	fmt.Println(err)
	// Output:
	// nesterov(0.9,0.7) <nil>
	// momentum 1.5 is not in 0..0.9999
}
