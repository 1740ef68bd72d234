package allreduce

import (
	"cmp"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Algorithm is a way to run an operation.
type Algorithm uint8

const (
	// AlgorithmAuto chooses by Model.
	AlgorithmAuto Algorithm = iota
	// AlgorithmRing is Ring, the only one of ReduceScatter and AllGather.
	AlgorithmRing
	AlgorithmDoubling // RecursiveDoubling
	AlgorithmHalving  // HalvingDoubling
	// AlgorithmTree is BinomialTree, also used for short Broadcasts and
	// Reduces.
	AlgorithmTree
	AlgorithmDoubleTree // DoubleTree
	// AlgorithmHierarchy is Hierarchy, for hosts with several ranks.
	AlgorithmHierarchy
	AlgorithmHierarchyDoubling // HierarchyDoubling
	AlgorithmLine              // LineBroadcast, LineReduce
	AlgorithmDissemination     // Barrier

	// AlgorithmLate is Late while one rank arrives after the others in most operations, by the ranks' own times, which
	// they compare every 16 all-reduces of 256 KiB and more; else, and where several hosts have several ranks, it is
	// AlgorithmAuto. Which one is used depends on times, so the bits of a result may differ from run to run, in rounding.
	AlgorithmLate
)

var algorithmNames = []string{"auto", "ring", "doubling", "halving", "tree", "double-tree", "hierarchy", "hierarchy-doubling", "line", "dissemination", "late"}

// nameable are the algorithms that Config.Algorithm may name.
var nameable = append(slices.Clone(algorithmNames[:AlgorithmHierarchyDoubling+1]), algorithmNames[AlgorithmLate])

// allReduceAlgorithms are those that AllReduce can choose from, in order of
// preference at equal cost.
var allReduceAlgorithms = []Algorithm{AlgorithmDoubling, AlgorithmHalving, AlgorithmRing, AlgorithmTree, AlgorithmDoubleTree}

func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return fmt.Sprintf("algorithm %d", uint8(a))
}

// MarshalText returns the algorithm's name.
func (a Algorithm) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses the name of an algorithm of AllReduce, or auto.
func (a *Algorithm) UnmarshalText(b []byte) error {
	if !slices.Contains(nameable, string(b)) {
		return fmt.Errorf("allreduce: unknown algorithm %q; use one of %v", b, nameable)
	}
	*a = Algorithm(slices.Index(algorithmNames, string(b)))
	return nil
}

// Model predicts the cost of algorithms. A message of S bytes takes Alpha +
// S·Beta seconds, and adding it up S·Gamma (the α-β-γ model of R. Hockney,
// Parallel Computing 20(3), 1994, and R. Thakur et al. 2005). Samples for the
// same number of ranks and links take precedence.
type Model struct {
	Alpha float64 `json:"alpha_s"`
	Beta  float64 `json:"beta_s_per_B"`
	Gamma float64 `json:"gamma_s_per_B"`

	// TCP has the options for sockets that Config leaves unset. Nil: none
	// measured.
	TCP *TCPOptions `json:"tcp,omitempty"`

	// Samples are measured times of AllReduce.
	Samples []Sample `json:"samples,omitempty"`
}

// Sample is the measured time of one AllReduce.
type Sample struct {
	Ranks int `json:"ranks"`
	// Transport is tcp, unix or shm; empty: any.
	Transport string    `json:"transport,omitempty"`
	Bytes     int64     `json:"bytes"`
	Algorithm Algorithm `json:"algorithm"`
	// Segment is in bytes; 0: the link's own.
	Segment int     `json:"segment_B,omitempty"`
	Seconds float64 `json:"median_s"`
}

// TCPOptions are options of Config, with the same names.
type TCPOptions struct {
	Congestion    string `json:"congestion,omitempty"`
	SendBuffer    int    `json:"send_buffer_B,omitempty"`
	ReceiveBuffer int    `json:"receive_buffer_B,omitempty"`
}

// over returns the part of m for ranks that are linked by kind.
func (m *Model) over(kind string) *Model {
	part := *m
	part.Samples = nil
	for _, s := range m.Samples {
		if s.Transport == "" || kind == "" || s.Transport == kind {
			part.Samples = append(part.Samples, s)
		}
	}
	return &part
}

// segment returns that of the sample with the nearest size, by ratio; 0: none
// was measured.
func (m *Model) segment(a Algorithm, n int, size int64) int {
	best, segment := math.Inf(1), 0
	for i := range m.Samples {
		s := &m.Samples[i]
		if s.Ranks != n || s.Algorithm != a {
			continue
		}
		if d := math.Abs(math.Log(float64(size) / float64(s.Bytes))); d < best {
			best, segment = d, s.Segment
		}
	}
	return segment
}

// DefaultModel is for processes on one host, measured on four cores of an AMD
// EPYC (2026): 12 µs for a message, 3 GB/s to send and receive it, 20 GB/s to
// add it up.
func DefaultModel() *Model { return &Model{Alpha: 12e-6, Beta: 1 / 3e9, Gamma: 1 / 20e9} }

// Seconds predicts the time of an AllReduce of size bytes by n ranks.
func (m *Model) Seconds(a Algorithm, n int, size int64) float64 {
	if n < 2 {
		return 0
	}
	if t, ok := m.measured(a, n, size); ok {
		return t
	}
	s, ranks := float64(size), float64(n)
	floor := float64(bits.Len(uint(n)) - 1)
	ceil := float64(bits.Len(uint(n - 1)))
	message := m.Alpha + s*m.Beta
	// The steps before and after, if n is not a power of two.
	fold := 0.0
	if n&(n-1) != 0 {
		fold = 2*message + s*m.Gamma
	}
	// Any algorithm that divides the work evenly must send, receive and add at
	// least this much per rank.
	even := (ranks - 1) / ranks * s * (2*m.Beta + m.Gamma)
	switch a {
	case AlgorithmDoubling:
		return floor*(message+s*m.Gamma) + fold
	case AlgorithmHalving:
		p := math.Exp2(floor)
		return 2*floor*m.Alpha + (p-1)/p*s*(2*m.Beta+m.Gamma) + fold
	case AlgorithmRing:
		return 2*(ranks-1)*m.Alpha + even
	case AlgorithmTree:
		return ceil * (2*message + s*m.Gamma)
	case AlgorithmDoubleTree:
		// Pipelined in segments: 2·ceil steps are in progress at once.
		seg := min(s, socketSegment)
		return 4*ceil*m.Alpha + (s+2*ceil*seg)*(2*m.Beta+m.Gamma)
	}
	return math.Inf(1)
}

// measured interpolates between Samples, in the logarithms of size and time.
func (m *Model) measured(a Algorithm, n int, size int64) (float64, bool) {
	var lo, hi *Sample
	for i := range m.Samples {
		s := &m.Samples[i]
		if s.Ranks != n || s.Algorithm != a || s.Seconds <= 0 || s.Bytes <= 0 {
			continue
		}
		if s.Bytes <= size && (lo == nil || s.Bytes > lo.Bytes) {
			lo = s
		}
		if s.Bytes >= size && (hi == nil || s.Bytes < hi.Bytes) {
			hi = s
		}
	}
	switch {
	case lo == nil && hi == nil:
		return 0, false
	// Below the shortest sample, messages take about as long as that one;
	// beyond the longest, time grows with the size.
	case lo == nil:
		return hi.Seconds, true
	case hi == nil:
		return lo.Seconds * float64(size) / float64(lo.Bytes), true
	case lo.Bytes == hi.Bytes:
		return lo.Seconds, true
	}
	x := math.Log(float64(size)/float64(lo.Bytes)) / math.Log(float64(hi.Bytes)/float64(lo.Bytes))
	return lo.Seconds * math.Pow(hi.Seconds/lo.Seconds, x), true
}

// Choose returns the fastest algorithm of AllReduce for size bytes and n ranks.
// If some were measured with n ranks it chooses among those, since predicted
// and measured times are not comparable.
func (m *Model) Choose(n int, size int64) Algorithm {
	best, price := AlgorithmAuto, math.Inf(1)
	for _, a := range allReduceAlgorithms {
		if p, ok := m.measured(a, n, size); ok && p < price {
			best, price = a, p
		}
	}
	if best != AlgorithmAuto {
		return best
	}
	best = AlgorithmRing
	for _, a := range allReduceAlgorithms {
		if p := m.Seconds(a, n, size); p < price {
			best, price = a, p
		}
	}
	return best
}

// choose returns the algorithm of an operation on size bytes.
func (g *Group) choose(c call, size int) Algorithm {
	switch c {
	case callReduceScatter, callAllGather, callDeliver, callCollect, callExchange:
		return AlgorithmRing
	case callBarrier:
		return AlgorithmDissemination
	case callBroadcast, callReduce:
		// A line sends a vector once and has n-1 steps, each of a segment.
		n, s := float64(len(g.peers)), float64(size)
		tree := float64(bits.Len(uint(len(g.peers)-1))) * (g.model.Alpha + s*g.model.Beta)
		line := (n-1)*(g.model.Alpha+min(s, socketSegment)*g.model.Beta) + s*g.model.Beta
		if line < tree {
			return AlgorithmLine
		}
		return AlgorithmTree
	}
	if g.chosen.ok && g.chosen.size == size {
		return g.chosen.algorithm
	}
	// All ranks choose from the same model and settings, so they agree without
	// a message.
	a, n := g.cfg.Algorithm, len(g.peers)
	if a == AlgorithmLate && (g.late.rank == None || size < lateSize || g.placed != nil) {
		a = AlgorithmAuto
	}
	switch {
	case a == AlgorithmAuto && g.placed != nil:
		a = g.placed.choose(g.prices, int64(size))
	case a == AlgorithmAuto:
		a = g.prices.Choose(n, int64(size))
	}
	g.chosen = sizedAlgorithm{size, a, g.prices.segment(a, n, int64(size)), true}
	return a
}

// sizedAlgorithm caches a choice.
type sizedAlgorithm struct {
	size      int
	algorithm Algorithm
	segment   int // 0: not measured
	ok        bool
}

// over selects the part of the model for the links that connect the ranks.
func (g *Group) over(kind string) {
	g.kind, g.prices, g.chosen = kind, g.model.over(kind), sizedAlgorithm{}
}

// cut applies the measured segments of the last chosen AllReduce to the links,
// if Config leaves them unset. Ranks may differ in it.
func (g *Group) cut() {
	segment := 0
	if g.cfg.Segment == 0 {
		segment = g.chosen.segment
	}
	if segment == g.segment {
		return
	}
	g.segment = segment
	for i := range g.peers {
		if p := &g.peers[i]; p.link != nil {
			p.segment = cmp.Or(segment, segmentFor(&g.cfg, p.link.kind()))
			if s, ok := p.link.(interface{ resize(segment int) }); ok {
				s.resize(p.segment)
			}
		}
	}
}

// Algorithm returns what AllReduce uses for a vector of that many bytes.
func (g *Group) Algorithm(size int64) Algorithm { return g.choose(callAllReduce, int(size)) }
