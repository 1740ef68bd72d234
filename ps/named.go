package ps

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"star"
)

// Named is a rule as a setting names it: NAME or NAME:key=value,key=value. The zero value is plain descent.
type Named struct {
	Name string // ad-psgd, dc-asgd, lgc, zeno++; empty: descent

	Graph Graph // AD-PSGD

	// DC-ASGD.
	Lambda   float64
	Adaptive bool
	Decay    float64

	// LGC.
	Sizes   bool // weight=samples
	Planned bool // partial=planned: workers divide the sum over the blocks that were done by all that were planned
	Blocks  int

	// Zeno++.
	Zeno    Zeno
	Every   int // gradients received between two of the validator's
	Samples int // of a validation batch
}

// Rules lists the names that ParseNamed knows.
const Rules = "ad-psgd, dc-asgd, lgc, zeno++"

// ParseNamed reads a rule. Errors name what is wrong and what there is.
func ParseNamed(text string) (Named, error) {
	name, rest, has := strings.Cut(text, ":")
	r := Named{Name: name}
	var fields map[string]func(string) error
	switch name {
	case "":
		if has {
			return r, fmt.Errorf("ps: a rule without a name: want one of %s", Rules)
		}
	case "ad-psgd":
		r.Graph = Complete
		fields = map[string]func(string) error{
			"graph": func(v string) error {
				switch r.Graph = Graph(v); r.Graph {
				case Complete, Circle:
					return nil
				}
				return fmt.Errorf("want %s or %s", Complete, Circle)
			},
		}
	case "dc-asgd":
		r.Lambda, r.Decay = math.NaN(), 0.95
		fields = map[string]func(string) error{
			"lambda": among(&r.Lambda, 0, 1e6), "decay": among(&r.Decay, 0, 1), "adaptive": choice(&r.Adaptive, "false", "true"),
		}
	case "lgc":
		r.Blocks = 8
		fields = map[string]func(string) error{
			"weight": choice(&r.Sizes, "workers", "samples"), "partial": choice(&r.Planned, "processed", "planned"), "blocks": whole(&r.Blocks, 1, 4096),
		}
	case "zeno++":
		r.Zeno, r.Every, r.Samples = Zeno{Rho: 0.001, Form: ZenoPaper}, 10, 128
		fields = map[string]func(string) error{
			"rho": among(&r.Zeno.Rho, 0, 1e6), "eps": among(&r.Zeno.Eps, 0, 1e6), "every": whole(&r.Every, 1, 1<<20), "samples": whole(&r.Samples, 1, 1<<20),
			"form": func(v string) error {
				switch r.Zeno.Form = ZenoForm(v); r.Zeno.Form {
				case ZenoPaper, ZenoCIFAR, ZenoLM:
					return nil
				}
				return fmt.Errorf("want %s, %s or %s", ZenoPaper, ZenoCIFAR, ZenoLM)
			},
		}
	default:
		return r, fmt.Errorf("ps: rule %.40q is unknown: want one of %s", name, Rules)
	}
	seen := map[string]bool{}
	for part := range strings.SplitSeq(rest, ",") {
		if !has {
			break
		}
		key, value, _ := strings.Cut(part, "=")
		set := fields[key]
		if set == nil || seen[key] {
			return r, fmt.Errorf("ps: rule %s: %.40q is no setting of it, or is given twice", name, key)
		}
		seen[key] = true
		if err := set(value); err != nil {
			return r, fmt.Errorf("ps: rule %s: %s=%.40s: %w", name, key, value, err)
		}
	}
	if name == "dc-asgd" && math.IsNaN(r.Lambda) {
		r.Lambda = 0.04 // constant
		if r.Adaptive {
			r.Lambda = 2
		}
	}
	return r, nil
}

func among(to *float64, least, most float64) func(string) error {
	return func(v string) error {
		x, err := strconv.ParseFloat(v, 64)
		if err != nil || !(x >= least && x <= most) {
			return fmt.Errorf("want a number from %v to %v", least, most)
		}
		*to = x
		return nil
	}
}

func whole(to *int, least, most int) func(string) error {
	return func(v string) error {
		k, err := strconv.Atoi(v)
		if err != nil || k < least || k > most {
			return fmt.Errorf("want a whole number from %d to %d", least, most)
		}
		*to = k
		return nil
	}
}

func choice(to *bool, no, yes string) func(string) error {
	return func(v string) error {
		if v != no && v != yes {
			return fmt.Errorf("want %s or %s", no, yes)
		}
		*to = v == yes
		return nil
	}
}

// Make makes the rule of a shard of n elements in a job of so many workers. then is what follows it.
func (r Named) Make(then *Descent, workers, n int) Rule {
	switch r.Name {
	case "ad-psgd":
		return NewGossip(then, workers, n, r.Graph)
	case "dc-asgd":
		return NewDelayCompensated(then, workers, n, r.Lambda, r.Decay, r.Adaptive)
	case "lgc":
		return &LiveCompensated{Then: then, Sizes: r.Sizes}
	case "zeno++":
		return &Validated{Then: then, Validator: star.Worker(workers)}
	}
	return then
}

// Inner is the descent in r, whatever is around it; nil if there is none.
func Inner(r Rule) *Descent {
	switch r := r.(type) {
	case *Descent:
		return r
	case *DelayCompensated:
		return r.Then
	case *Gossip:
		return r.Then
	case *LiveCompensated:
		return r.Then
	case *Validated:
		return r.Then
	case *WorkerMomentum:
		return r.Then
	}
	return nil
}
