package ps

import (
	"fmt"
	"testing"
)

func TestParseNamed(t *testing.T) {
	for text, want := range map[string]Named{
		"":                                     {},
		"dc-asgd":                              {Name: "dc-asgd", Lambda: 0.04, Decay: 0.95},
		"dc-asgd:adaptive=true":                {Name: "dc-asgd", Lambda: 2, Adaptive: true, Decay: 0.95},
		"dc-asgd:adaptive=true,lambda=1":       {Name: "dc-asgd", Lambda: 1, Adaptive: true, Decay: 0.95},
		"dc-asgd:lambda=0.1,decay=0.5":         {Name: "dc-asgd", Lambda: 0.1, Decay: 0.5},
		"lgc":                                  {Name: "lgc", Blocks: 8},
		"lgc:weight=samples,partial=planned":   {Name: "lgc", Blocks: 8, Sizes: true, Planned: true},
		"lgc:blocks=1":                         {Name: "lgc", Blocks: 1},
		"zeno++":                               {Name: "zeno++", Zeno: Zeno{0.001, 0, ZenoPaper}, Every: 10, Samples: 128},
		"zeno++:form=lm_code,rho=0.002,eps=.1": {Name: "zeno++", Zeno: Zeno{0.002, .1, ZenoLM}, Every: 10, Samples: 128},
		"zeno++:every=5,samples=8":             {Name: "zeno++", Zeno: Zeno{0.001, 0, ZenoPaper}, Every: 5, Samples: 8},
	} {
		got, err := ParseNamed(text)
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v; want %+v", text, got, err, want)
		}
		then := descent(1)
		if rule := got.Make(then, 3, 4); Inner(rule) != then {
			t.Errorf("%q makes a %T without its descent", text, rule)
		}
	}
	for text, want := range map[string]string{
		"zeno":                       `ps: rule "zeno" is unknown: want one of ad-psgd, dc-asgd, lgc, zeno++`,
		":lambda=1":                  `ps: a rule without a name: want one of ad-psgd, dc-asgd, lgc, zeno++`,
		"dc-asgd:":                   `ps: rule dc-asgd: "" is no setting of it, or is given twice`,
		"dc-asgd:rho=1":              `ps: rule dc-asgd: "rho" is no setting of it, or is given twice`,
		"dc-asgd:lambda=1,lambda=1":  `ps: rule dc-asgd: "lambda" is no setting of it, or is given twice`,
		"dc-asgd:lambda=NaN":         `ps: rule dc-asgd: lambda=NaN: want a number from 0 to 1e+06`,
		"dc-asgd:adaptive=yes":       `ps: rule dc-asgd: adaptive=yes: want false or true`,
		"lgc:blocks=0":               `ps: rule lgc: blocks=0: want a whole number from 1 to 4096`,
		"zeno++:form=STAR":           `ps: rule zeno++: form=STAR: want paper, cifar_code or lm_code`,
		"zeno++:every=1000000000000": `ps: rule zeno++: every=1000000000000: want a whole number from 1 to 1048576`,
	} {
		if _, err := ParseNamed(text); fmt.Sprint(err) != want {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}
