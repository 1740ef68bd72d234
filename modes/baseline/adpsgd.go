package baseline

import (
	"star/modes"
	"star/ps/rule"
)

// adPSGD gives every worker a model of its own, which is averaged with one other's at each of its steps.
//
// X. Lian, W. Zhang, C. Zhang, J. Liu: Asynchronous Decentralized Parallel Stochastic Gradient Descent. ICML 2018.
var adPSGD = Entry{
	Name:  "ad-psgd",
	Paper: "Lian, Zhang, Zhang, Liu, ICML 2018",
	About: "workers have models of their own; at each step one is averaged with that of another worker",
	Settings: []Setting{
		{Name: "graph", Default: "complete", Source: "ours", Kind: Choice, Of: []string{"complete", "ring"}, About: "pairs that average: any two workers, or workers with adjacent ranks"},
	},
	Make: func(j Job, v Values) (Made, error) {
		return Made{Plan: modes.ASGD(j.Workers), Rule: rule.GossipSpec{Graph: rule.Graph(v["graph"])}}, nil
	},
}
