package baseline

import (
	"math"

	"star/modes"
	"star/ps/rule"
)

// dcASGD corrects gradients for how far the parameters have moved since they were read.
var dcASGD = Entry{
	Name:  "dc-asgd",
	Paper: "Zheng, Meng, Wang, Chen, Yu, Ma, Liu, ICML 2017",
	About: "ASGD with gradients corrected for their delay",
	Settings: []Setting{
		{Name: "lambda", Source: "paper", Kind: Number, Min: 0, Max: 1e6, About: "strength of the correction (λ, λ₀); 0.04 where it is constant, 2 where it is adaptive"},
		{Name: "adaptive", Default: "false", Source: "paper", Kind: Choice, Of: []string{"false", "true"}, About: "λ of each element by its mean square (DC-ASGD-a)"},
		{Name: "decay", Default: "0.95", Source: "paper", Kind: Number, Min: 0, Max: 1, About: "of the mean square (m)"},
	},
	Make: func(j Job, v Values) (Made, error) {
		s := rule.DelaySpec{Lambda: v.Number("lambda"), Decay: v.Number("decay"), Adaptive: v["adaptive"] == "true"}
		if math.IsNaN(s.Lambda) {
			s.Lambda = 0.04 // constant
			if s.Adaptive {
				s.Lambda = 2
			}
		}
		return Made{Plan: modes.ASGD(j.Workers), Rule: s}, nil
	},
}
