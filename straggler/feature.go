package straggler

import (
	"fmt"
	"math"
	"slices"

	"star"
)

// Feature is an input of the LSTM. Its name is used in model files.
type Feature string

const (
	FeatureCPU   Feature = "cpu"   // processor time per second of the iteration
	FeatureNet   Feature = "net"   // bytes in and out per second of the iteration
	FeatureTime  Feature = "time"  // logarithm of the own time over its level
	FeaturePeers Feature = "peers" // logarithm of the median of all workers' last own times over the level
)

// settle is the weight of the newest time in a worker's level, the moving average of
// its times' logarithms. All times that the network sees and predicts are relative to the
// level: it starts from the prediction of an EWMA, and its parameters
// are valid at other speeds, too.
const settle = 0.3

// Resources are the artefact's inputs, as rates. Own and all workers' times are added:
// the best single predictor of a time is the time before.
var Resources = []Feature{FeatureCPU, FeatureNet, FeatureTime, FeaturePeers}

// Times are the inputs where nothing but times is known, as in recorded traces.
var Times = []Feature{FeatureTime, FeaturePeers}

func checkFeatures(fs []Feature) error {
	if len(fs) == 0 {
		return fmt.Errorf("no features")
	}
	for i, f := range fs {
		if !slices.Contains(Resources, f) || slices.Contains(fs[:i], f) {
			return fmt.Errorf("features %q: want some of %q, each once", fs, Resources)
		}
	}
	return nil
}

// lens makes features of records. It remembers each worker's last time and level.
type lens struct {
	features []Feature
	timer    Timer
	last     []float64 // logarithm of seconds; NaN: nothing seen
	level    []float64 // moving average of these
	peers    float64
	stale    int
	scratch  []float64
}

func newLens(workers int, timer Timer, features []Feature) *lens {
	l := &lens{features: features, timer: timer, last: make([]float64, workers), level: make([]float64, workers), peers: math.NaN()}
	for i := range l.last {
		l.last[i] = math.NaN()
	}
	return l
}

// look appends the features of a usable record to dst. What was not measured is NaN.
func (l *lens) look(dst []float64, r *star.Record) []float64 {
	own := math.Log(l.timer(*r).Seconds())
	level := &l.level[r.Worker]
	if math.IsNaN(l.last[r.Worker]) {
		*level = own
	}
	*level += settle * (own - *level)
	l.last[r.Worker] = own
	if l.stale++; l.stale > len(l.last)/8 || math.IsNaN(l.peers) {
		l.stale, l.scratch = 0, l.scratch[:0]
		for _, v := range l.last {
			if !math.IsNaN(v) {
				l.scratch = append(l.scratch, v)
			}
		}
		l.peers = median(l.scratch)
	}
	whole := r.Iteration().Seconds()
	for _, f := range l.features {
		v := math.NaN()
		switch {
		case f == FeatureTime:
			v = own - *level
		case f == FeaturePeers:
			v = l.peers - *level
		case f == FeatureCPU && r.CPU >= 0 && r.CPU <= maxCPUs:
			v = r.CPU
		case f == FeatureNet && whole > 0 && r.NetIn >= 0 && r.NetOut >= 0:
			v = (r.NetIn + r.NetOut) / whole
		}
		dst = append(dst, v)
	}
	return dst
}
