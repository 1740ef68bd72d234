package price

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"gonum.org/v1/gonum/mat"

	"star"
	"star/modes"
)

// Learned is a Decider that has learned the cost of plans: a regression of the logarithm of a candidate's cost,
// relative to SSGD's, on its price by [Candidates], on the times, φ/B, the number of workers and the phase. It takes
// the candidate of the lowest expected cost. Where a forecast is outside its training data, it decides as [Cheapest]
// and says so. Make one with [Learn] or [ParseLearned].
type Learned struct {
	Weights []float64 // of standardised features; the last one is the constant
	Mean    []float64 // of features, in training
	Scale   []float64 // their standard deviations
	Low     []float64 // their least values
	High    []float64 // their greatest
	Samples int       // number of lessons
}

// Lesson is the measured cost of a plan.
type Lesson struct {
	Forecast Forecast
	Plan     modes.Plan
	Ratio    float64 // its cost relative to that of SSGD
}

// features are those of a candidate of p; their number does not depend on the number of workers.
func (p *problem) features(c Candidate) []float64 {
	n := len(p.t)
	at := func(q float64) float64 { return math.Log(p.t[int(q*float64(n-1)+0.5)] / p.t[0]) }
	// Momentum's part is not learned.
	price := math.Log(c.Cost.Seconds() / p.strain(c.flow.behind) / p.ssgdCost().Seconds())
	rate := math.Log(c.Rate() * p.t[n-1] / p.B)
	size := math.Log(c.Samples / p.B)
	noise := math.Log1p(p.y)
	kind := func(k string) float64 {
		if c.Kind == k {
			return 1
		}
		return 0
	}
	return []float64{
		price, rate, size, noise, at(.25), at(.5), at(.75), at(1), math.Log(float64(n)), p.f.Phase,
		size * noise, rate * noise, price * noise, rate * size, price * price,
		kind(KindStatic), kind(KindASGD), kind(KindGroups), kind(KindRing), kind(KindTree),
	}
}

// Learn fits a Learned to lessons by ridge regression (Hoerl, Kennard 1970): least squares of the logarithms of ratios,
// plus ridge times the squares of the weights of standardised features. ridge is positive; 1 is a good start.
func Learn(lessons []Lesson, ridge float64) (*Learned, error) {
	if !(ridge > 0) || math.IsInf(ridge, 1) {
		return nil, fmt.Errorf("price: learn with ridge %v: want a positive number", ridge)
	}
	var xs [][]float64
	var ys []float64
	for i, l := range lessons {
		if !(l.Ratio > 0) || math.IsInf(l.Ratio, 1) {
			return nil, fmt.Errorf("price: lesson %d: %v costs %v of ssgd: want a positive number", i, l.Plan, l.Ratio)
		}
		p, err := l.Forecast.problem()
		if err != nil {
			return nil, fmt.Errorf("price: lesson %d: %w", i, err)
		}
		c, err := priceAny(l.Plan, l.Forecast)
		if err != nil {
			return nil, fmt.Errorf("price: lesson %d: %w", i, err)
		}
		xs, ys = append(xs, p.features(c)), append(ys, math.Log(l.Ratio/p.strain(c.flow.behind)))
	}
	if len(xs) == 0 {
		return nil, errors.New("price: no lessons to learn from")
	}
	k, m := len(xs[0]), float64(len(xs))
	if len(xs) < 4*k {
		return nil, fmt.Errorf("price: %d lessons for %d features: at least %d are needed", len(xs), k, 4*k)
	}
	d := &Learned{Weights: make([]float64, k+1), Mean: make([]float64, k), Scale: make([]float64, k), Low: slices.Clone(xs[0]), High: slices.Clone(xs[0]), Samples: len(xs)}
	for _, x := range xs {
		for j, v := range x {
			d.Mean[j] += v / m
			d.Low[j], d.High[j] = min(d.Low[j], v), max(d.High[j], v)
		}
	}
	for _, x := range xs {
		for j, v := range x {
			d.Scale[j] += (v - d.Mean[j]) * (v - d.Mean[j]) / m
		}
	}
	for j := range d.Scale {
		if d.Scale[j] = math.Sqrt(d.Scale[j]); d.Scale[j] < 1e-9 {
			d.Scale[j] = 1 // it says nothing: its weight becomes zero
		}
	}
	mean := 0.0
	for _, y := range ys {
		mean += y / m
	}
	a, b := mat.NewSymDense(k, nil), mat.NewVecDense(k, nil)
	for i, x := range xs {
		z := d.standard(x)
		for r := range z {
			for c := r; c < k; c++ {
				a.SetSym(r, c, a.At(r, c)+z[r]*z[c])
			}
			b.SetVec(r, b.AtVec(r)+z[r]*(ys[i]-mean))
		}
	}
	for r := range k {
		a.SetSym(r, r, a.At(r, r)+ridge)
	}
	var chol mat.Cholesky
	var w mat.VecDense
	if !chol.Factorize(a) {
		return nil, errors.New("price: the lessons' features depend on each other: give a larger ridge")
	}
	if err := chol.SolveVecTo(&w, b); err != nil {
		return nil, fmt.Errorf("price: learn: %w", err)
	}
	copy(d.Weights, w.RawVector().Data)
	d.Weights[k] = mean
	return d, nil
}

func (d *Learned) standard(x []float64) []float64 {
	z := make([]float64, len(x))
	for j, v := range x {
		z[j] = (v - d.Mean[j]) / d.Scale[j]
	}
	return z
}

// ratio is the expected cost relative to SSGD.
func (d *Learned) ratio(x []float64) float64 {
	y := d.Weights[len(x)]
	for j, z := range d.standard(x) {
		y += d.Weights[j] * z
	}
	return math.Exp(y)
}

// firstShared to lastShared are the features that all candidates of a forecast share.
const firstShared, lastShared = 3, 9

var featureNames = [...]string{firstShared: "noise scale", "quartile of times", "median of times", "third quartile of times", "slowest time", "workers", "phase"}

// outside names the feature of a forecast that is outside the range of all lessons; empty: it is inside.
func (d *Learned) outside(x []float64) string {
	for j := firstShared; j <= lastShared; j++ {
		if j == lastShared && d.High[j] == d.Low[j] {
			continue // lessons of whole runs have no phase
		}
		slack := 0.02*(d.High[j]-d.Low[j]) + 1e-9
		if x[j] < d.Low[j]-slack || x[j] > d.High[j]+slack {
			return featureNames[j]
		}
	}
	return ""
}

// Decide implements [Decider].
func (d *Learned) Decide(f Forecast) (Decision, error) {
	c, ratio, why, err := d.Choose(f, nil)
	if err != nil {
		return Decision{}, err
	}
	if why != "" {
		e, err := Cheapest{}.Decide(f)
		e.Why = why + ": " + e.Why
		return e, err
	}
	p, err := f.problem()
	if err != nil {
		return Decision{}, err
	}
	cost := Seconds(ratio * p.ssgdCost().Seconds())
	return Decision{Plan: c.Plan, Cost: cost, Why: "learned: " + f.Why(Candidate{Kind: c.Kind, Plan: c.Plan, Cost: cost}, p.ssgdCost())}, nil
}

// Choose is Decide among the candidates for which ok is true; nil: all. It returns the expected cost relative to SSGD,
// or the reason why it is unknown.
func (d *Learned) Choose(f Forecast, ok func(Candidate) bool) (best Candidate, ratio float64, why string, err error) {
	p, err := f.problem()
	if err != nil {
		return best, 0, "", err
	}
	ratio = math.Inf(1)
	for _, c := range p.promising(math.Inf(1)) {
		if ok != nil && !ok(c) {
			continue
		}
		x, r := p.features(c), 1.0
		if name := d.outside(x); name != "" {
			return best, 0, fmt.Sprintf("the %s is outside what was learned from", name), nil
		}
		if c.Kind != KindSSGD || c.Plan.Shares != nil {
			r = d.ratio(x) * p.strain(c.flow.behind)
		}
		if r < ratio {
			best, ratio = c, r
		}
	}
	return best, ratio, "", nil
}

// ErrLearned is in the error of a text that is not a learned decider, or a damaged one.
var ErrLearned = errors.New("not a learned decider")

// learnedHead is the first line of a decider's file.
type learnedHead struct {
	Format  string `json:"format"` // "star decider"
	Version int    `json:"version"`
	SHA256  string `json:"sha256"` // of the second line, without its end
}

// AppendTo appends d as two lines of JSON: a head with the checksum, and the weights.
func (d *Learned) AppendTo(dst []byte) ([]byte, error) {
	body, err := json.Marshal(d)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(body)
	head, err := json.Marshal(learnedHead{Format: "star decider", Version: 1, SHA256: hex.EncodeToString(sum[:])})
	if err != nil {
		return nil, err
	}
	return slices.Concat(dst, head, []byte("\n"), body, []byte("\n")), nil
}

// ParseLearned reads the output of AppendTo. Errors are ErrLearned.
func ParseLearned(text []byte) (*Learned, error) {
	bad := func(format string, args ...any) (*Learned, error) {
		return nil, fmt.Errorf("%w: %s; train it again with star decider train", ErrLearned, fmt.Sprintf(format, args...))
	}
	first, body, _ := bytes.Cut(text, []byte("\n"))
	body = bytes.TrimSuffix(body, []byte("\n"))
	var h learnedHead
	if json.Unmarshal(first, &h) != nil || h.Format != "star decider" {
		return bad("its first line is not that of a star decider")
	}
	if h.Version != 1 {
		return bad("its version is %d, this program reads 1", h.Version)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != h.SHA256 {
		return bad("its checksum is wrong")
	}
	d := new(Learned)
	if err := json.Unmarshal(body, d); err != nil {
		return bad("%v", err)
	}
	p, _ := (&Forecast{Times: []time.Duration{1}, Batch: 1}).problem()
	k := len(p.features(p.candidate(KindSSGD, modes.SSGD(1), p.undropped(1, 1, 1, 1))))
	if len(d.Weights) != k+1 || len(d.Mean) != k || len(d.Scale) != k || len(d.Low) != k || len(d.High) != k {
		return bad("it has %d weights, this program has %d", len(d.Weights), k+1)
	}
	for _, vs := range [][]float64{d.Weights, d.Mean, d.Scale, d.Low, d.High} {
		for _, v := range vs {
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return bad("a number in it is not finite")
			}
		}
	}
	for _, s := range d.Scale {
		if s <= 0 {
			return bad("a scale in it is %v", s)
		}
	}
	return d, nil
}

// priceAny is Of for any plan of the job, also with workers that have left, at the speed of a candidate where the plan
// has the form of one.
func priceAny(p modes.Plan, f Forecast) (Candidate, error) {
	q, err := f.problem()
	if err != nil {
		return Candidate{}, err
	}
	s := search{problem: q}
	n := len(q.ws)
	if p.Shares == nil && p.Queue == 0 && p.Local == 0 && !p.HasTree() && !p.AutoTree && len(p.Groups) == 1 && !p.Groups[0].DropLate && len(q.gone) == 0 {
		g := p.Groups[0]
		switch {
		case g.Quorum == len(g.Members) && len(g.Riders) == 0:
			return q.candidate(KindSSGD, p, q.undropped(q.B/q.t[n-1], 1/q.t[n-1], q.B, float64(n))), nil
		case len(g.Riders) == 0 && g.Quorum > 1:
			i, own := s.order(g.Quorum), float64(g.Quorum)*q.b
			return q.candidate(KindStatic, p, q.undropped(own/i, 1/i, own, float64(g.Quorum))), nil
		}
	}
	if len(q.gone) == 0 {
		return Of(p, f)
	}
	small, g := without(p, q.gone, len(f.Times)), f
	g.Times, g.Fits, g.Shares = nil, nil, nil
	for w, t := range f.Times {
		if t == 0 {
			continue
		}
		g.Times = append(g.Times, t)
		if f.Fits != nil {
			g.Fits = append(g.Fits, f.Fits[w])
		}
		if f.Shares != nil {
			g.Shares = append(g.Shares, f.Shares[w])
		}
	}
	return Of(small, g)
}

// without is p for the live workers, with new ranks. Groups without workers are dropped, and their riders make updates
// alone.
func without(p modes.Plan, gone []star.Worker, n int) modes.Plan {
	to := make([]star.Worker, n)
	k := star.Worker(0)
	for w := range to {
		if slices.Contains(gone, star.Worker(w)) {
			to[w] = -1
			continue
		}
		to[w] = k
		k++
	}
	pick := func(ws []star.Worker) (out []star.Worker) {
		for _, w := range ws {
			if to[w] >= 0 {
				out = append(out, to[w])
			}
		}
		return out
	}
	q := modes.Plan{Queue: p.Queue, Local: p.Local}
	placed := make([]bool, k)
	for _, g := range p.Groups {
		h := modes.Group{Members: pick(g.Members), Riders: pick(g.Riders), DropLate: g.DropLate}
		if len(h.Members) == 0 {
			continue
		}
		h.Quorum = min(g.Quorum, len(h.Members))
		for _, w := range slices.Concat(h.Members, h.Riders) {
			placed[w] = true
		}
		q.Groups = append(q.Groups, h)
	}
	for w, ok := range placed {
		if !ok {
			q.Groups = append(q.Groups, modes.Group{Members: []star.Worker{star.Worker(w)}, Quorum: 1})
		}
	}
	for w, s := range p.Shares {
		if to[w] >= 0 {
			q.Shares = append(q.Shares, s)
		}
	}
	return q // a tree is not priced here
}
