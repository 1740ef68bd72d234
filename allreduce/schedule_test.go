package allreduce

import (
	"fmt"
	"math"
	"math/bits"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// maxRanks: schedules are proved for 1 to this many ranks.
const maxRanks = 33

var allReduces = map[string]func(n, rank int) Schedule{
	"ring":                                Ring,
	"doubling":                            RecursiveDoubling,
	"halving":                             HalvingDoubling,
	"binomial":                            BinomialTree,
	"double":                              DoubleTree,
	"late: the first":                     func(n, r int) Schedule { return Late(n, r, 0) },
	"late: the middle":                    func(n, r int) Schedule { return Late(n, r, n/2) },
	"late: the last":                      func(n, r int) Schedule { return Late(n, r, n-1) },
	"hierarchy: one host":                 func(n, r int) Schedule { return Hierarchy(make([]int, n), r) },
	"hierarchy: hosts of one":             func(n, r int) Schedule { return Hierarchy(spread(n, n), r) },
	"hierarchy: three in turns":           func(n, r int) Schedule { return Hierarchy(spread(n, 3), r) },
	"hierarchy: uneven":                   func(n, r int) Schedule { return Hierarchy(uneven(n), r) },
	"hierarchy, doubling: three in turns": func(n, r int) Schedule { return HierarchyDoubling(spread(n, 3), r) },
	"hierarchy, doubling: uneven":         func(n, r int) Schedule { return HierarchyDoubling(uneven(n), r) },
}

// spread puts n ranks on the given number of hosts, in turns.
func spread(n, hosts int) []int {
	out := make([]int, n)
	for r := range out {
		out[r] = r % min(hosts, n)
	}
	return out
}

// uneven puts n ranks on hosts of 3, 1, 2, 3, 1, 2, … ranks; the last one has what is left. The
// second of two ranks comes late, after all others.
func uneven(n int) []int {
	var out []int
	for h := 0; len(out) < n; h++ {
		for range min([]int{3, 1, 2}[h%3], n-len(out)) {
			out = append(out, h)
		}
	}
	if n > 6 {
		out = append(append(slices.Clone(out[:5]), out[6:]...), out[5])
	}
	return out
}

// every makes the schedules of all ranks.
func every(n int, f func(n, rank int) Schedule) []Schedule {
	all := make([]Schedule, n)
	for r := range all {
		all[r] = f(n, r)
	}
	return all
}

// everySchedule calls f with all kinds of schedules for n ranks.
func everySchedule(n int, f func(name string, all []Schedule)) {
	for name, s := range allReduces {
		f(name, every(n, s))
	}
	f("scatter", every(n, RingReduceScatter))
	f("gather", every(n, RingAllGather))
	f("barrier", every(n, Dissemination))
	for root := range n {
		for name, s := range map[string]func(n, rank, root int) Schedule{
			"reduce": TreeReduce, "broadcast": TreeBroadcast, "reduce-line": LineReduce, "broadcast-line": LineBroadcast,
		} {
			f(fmt.Sprintf("%s to %d", name, root), every(n, func(n, rank int) Schedule { return s(n, rank, root) }))
		}
	}
}

// execute runs the schedules of all ranks on their vectors (one slice of elements for each block), step by step. What
// is sent in a step is what was there before it.
func execute(all []Schedule, data [][][]int64) {
	for step := range all[0].Steps {
		type transfer struct{ from, to int }
		wire := map[transfer][][]int64{}
		for r, s := range all {
			for _, m := range s.Moves {
				if m.Step == step && m.To != None {
					var blocks [][]int64
					for b := m.Send.Lo; b < m.Send.Hi; b++ {
						blocks = append(blocks, slices.Clone(data[r][b]))
					}
					wire[transfer{r, m.To}] = blocks
				}
			}
		}
		for r, s := range all {
			for _, m := range s.Moves {
				if m.Step != step || m.From == None {
					continue
				}
				for i, block := range wire[transfer{m.From, r}] {
					for j, x := range block {
						if m.Add {
							x += data[r][m.Recv.Lo+i][j]
						}
						data[r][m.Recv.Lo+i][j] = x
					}
				}
			}
		}
	}
}

func TestEverySendMeetsItsReceive(t *testing.T) {
	type transfer struct {
		step, from, to int
		span           Span
	}
	for n := 1; n <= maxRanks; n++ {
		everySchedule(n, func(name string, all []Schedule) {
			sent, received := map[transfer]int{}, map[transfer]int{}
			for r, s := range all {
				if s.Blocks != all[0].Blocks || s.Steps != all[0].Steps {
					t.Fatalf("%s of %d: rank %d has %d blocks in %d steps, rank 0 %d in %d", name, n, r, s.Blocks, s.Steps, all[0].Blocks, all[0].Steps)
				}
				last := 0
				for _, m := range s.Moves {
					if m.Step < last || m.Step >= s.Steps {
						t.Fatalf("%s of %d: rank %d: step %d after step %d of %d", name, n, r, m.Step, last, s.Steps)
					}
					last = m.Step
					if m.To != None {
						sent[transfer{m.Step, r, m.To, m.Send}]++
					}
					if m.From != None {
						received[transfer{m.Step, m.From, r, m.Recv}]++
					}
					for _, sp := range []Span{m.Send, m.Recv} {
						if sp.Lo < 0 || sp.Hi < sp.Lo || sp.Hi > s.Blocks || m.To == r || m.From == r {
							t.Fatalf("%s of %d: rank %d: bad move %+v", name, n, r, m)
						}
					}
				}
			}
			if !reflect.DeepEqual(sent, received) {
				t.Fatalf("%s of %d: sent %v, received %v", name, n, sent, received)
			}
			for k, c := range sent {
				if c != 1 {
					t.Fatalf("%s of %d: %v %d times", name, n, k, c)
				}
			}
		})
	}
}

// In a step, a rank may write what it sends in the same step only to the partner that it sends it to: then the executor
// has to hold back the addition until the element has left, and no other rank waits for that. And it writes a block
// once.
func TestNoStepWritesWhatAnotherMoveReads(t *testing.T) {
	overlap := func(a, b Span) bool { return max(a.Lo, b.Lo) < min(a.Hi, b.Hi) }
	for n := 1; n <= maxRanks; n++ {
		everySchedule(n, func(name string, all []Schedule) {
			for r, s := range all {
				for i, a := range s.Moves {
					for j, b := range s.Moves {
						if a.Step != b.Step {
							continue
						}
						if a.From != None && b.To != None && overlap(a.Recv, b.Send) && !(i == j && (a.From == a.To || name == "barrier")) {
							t.Errorf("%s of %d, rank %d, step %d: %+v writes what %+v reads", name, n, r, a.Step, a, b)
						}
						if i < j && a.From != None && b.From != None && overlap(a.Recv, b.Recv) {
							t.Errorf("%s of %d, rank %d, step %d: %+v and %+v write the same", name, n, r, a.Step, a, b)
						}
					}
				}
			}
		})
	}
}

// vectors gives each rank blocks of random elements; a sum shows which ranks are in it.
func vectors(n, blocks int) (data [][][]int64, sum [][]int64) {
	rnd := rand.New(rand.NewPCG(uint64(n), uint64(blocks)))
	sum = make([][]int64, blocks)
	for b := range sum {
		sum[b] = make([]int64, 3)
	}
	for range n {
		v := make([][]int64, blocks)
		for b := range v {
			for j := range 3 {
				x := rnd.Int64N(1 << 50)
				v[b] = append(v[b], x)
				sum[b][j] += x
			}
		}
		data = append(data, v)
	}
	return data, sum
}

func TestAllReduceSumsEverywhere(t *testing.T) {
	for n := 1; n <= maxRanks; n++ {
		for name, f := range allReduces {
			all := every(n, f)
			data, sum := vectors(n, all[0].Blocks)
			execute(all, data)
			for r := range data {
				if !reflect.DeepEqual(data[r], sum) {
					t.Errorf("%s of %d: rank %d has %v, want %v", name, n, r, data[r], sum)
				}
			}
		}
	}
}

func TestOtherOperations(t *testing.T) {
	for n := 1; n <= maxRanks; n++ {
		data, sum := vectors(n, n)
		execute(every(n, RingReduceScatter), data)
		for r := range data {
			if !slices.Equal(data[r][r], sum[r]) {
				t.Errorf("scatter of %d: rank %d has %v, want %v", n, r, data[r][r], sum[r])
			}
		}
		before, _ := vectors(n, n)
		data, _ = vectors(n, n)
		execute(every(n, RingAllGather), data)
		for r := range data {
			for b := range n {
				if !slices.Equal(data[r][b], before[b][b]) {
					t.Errorf("gather of %d: rank %d has %v in block %d, want %v", n, r, data[r][b], b, before[b][b])
				}
			}
		}
		for root := range n {
			for _, f := range []func(n, rank, root int) Schedule{TreeReduce, LineReduce} {
				data, sum = vectors(n, 1)
				execute(every(n, func(n, rank int) Schedule { return f(n, rank, root) }), data)
				if !reflect.DeepEqual(data[root], sum) {
					t.Errorf("reduce of %d to %d: %v, want %v", n, root, data[root], sum)
				}
			}
			for _, f := range []func(n, rank, root int) Schedule{TreeBroadcast, LineBroadcast} {
				data, _ = vectors(n, 1)
				want := slices.Clone(data[root][0])
				execute(every(n, func(n, rank int) Schedule { return f(n, rank, root) }), data)
				for r := range data {
					if !slices.Equal(data[r][0], want) {
						t.Errorf("broadcast of %d from %d: rank %d has %v, want %v", n, root, r, data[r], want)
					}
				}
			}
		}
	}
}

// A barrier's messages must bring word of every rank to every rank.
func TestBarrierHearsOfEverybody(t *testing.T) {
	for n := 1; n <= maxRanks; n++ {
		all := every(n, Dissemination)
		heard := make([]uint64, n) // bit r: rank r has begun
		for r := range heard {
			heard[r] = 1 << r
		}
		for step := range all[0].Steps {
			before := slices.Clone(heard)
			for r, s := range all {
				for _, m := range s.Moves {
					if m.Step == step {
						heard[r] |= before[m.From]
					}
				}
			}
		}
		for r, h := range heard {
			if h != 1<<n-1 {
				t.Errorf("barrier of %d: rank %d has heard of %b", n, r, h)
			}
		}
	}
}

// Exactly one addition on the way to each rank's result is the last one, and it
// is the one that completes the sum: dividing there divides once.
func TestLastMarksTheCompleteSum(t *testing.T) {
	for n := 2; n <= maxRanks; n++ {
		for name, f := range allReduces {
			all := every(n, f)
			blocks := all[0].Blocks
			// For block b of rank r: the set of ranks in it, and (divided) whether Last was seen.
			who := make([][]uint64, n)
			divided := make([][]bool, n)
			for r := range who {
				who[r], divided[r] = make([]uint64, blocks), make([]bool, blocks)
				for b := range blocks {
					who[r][b] = 1 << r
				}
			}
			for step := range all[0].Steps {
				w, d := make([][]uint64, n), make([][]bool, n)
				for r := range n {
					w[r], d[r] = slices.Clone(who[r]), slices.Clone(divided[r])
				}
				for r, s := range all {
					for _, m := range s.Moves {
						if m.Step != step || m.From == None {
							continue
						}
						for b := m.Recv.Lo; b < m.Recv.Hi; b++ {
							if !m.Add {
								who[r][b], divided[r][b] = w[m.From][b], d[m.From][b]
								continue
							}
							if who[r][b]&w[m.From][b] != 0 {
								t.Fatalf("%s of %d: rank %d adds %b to %b", name, n, r, w[m.From][b], who[r][b])
							}
							who[r][b] |= w[m.From][b]
							if complete := who[r][b] == 1<<n-1; m.Last != complete || d[r][b] || d[m.From][b] {
								t.Fatalf("%s of %d: rank %d, step %d: Last is %v, complete %v", name, n, r, step, m.Last, complete)
							}
							divided[r][b] = m.Last
						}
					}
				}
			}
			for r := range n {
				if slices.Contains(divided[r], false) {
					t.Errorf("%s of %d: rank %d has blocks that were not divided", name, n, r)
				}
			}
		}
	}
}

func TestSteps(t *testing.T) {
	log2 := func(n int) int { return bits.Len(uint(n - 1)) } // rounded up
	for n := 1; n <= maxRanks; n++ {
		floor := bits.Len(uint(n)) - 1
		fold := 0
		if n != 1<<floor {
			fold = 2
		}
		for name, c := range map[string]struct{ got, want int }{
			"ring":      {Ring(n, 0).Steps, 2 * (n - 1)},
			"doubling":  {RecursiveDoubling(n, 0).Steps, floor + fold},
			"halving":   {HalvingDoubling(n, 0).Steps, 2*floor + fold},
			"binomial":  {BinomialTree(n, 0).Steps, 2 * log2(n)},
			"scatter":   {RingReduceScatter(n, 0).Steps, n - 1},
			"gather":    {RingAllGather(n, 0).Steps, n - 1},
			"reduce":    {TreeReduce(n, 0, n-1).Steps, log2(n)},
			"broadcast": {TreeBroadcast(n, 0, n-1).Steps, log2(n)},
			"barrier":   {Dissemination(n, 0).Steps, log2(n)},
		} {
			if c.got != c.want {
				t.Errorf("%s of %d: %d steps, want %d", name, n, c.got, c.want)
			}
		}
		// A node with two children hears from one after the other, so each level
		// of the tree costs at most two steps up and two down; the top one costs one.
		if got, most := DoubleTree(n, 0).Steps, max(0, 4*log2(n)-2); got > most {
			t.Errorf("double tree of %d: %d steps, want at most %d", n, got, most)
		}
	}
}

// The ring sends the least possible, and no rank (but rank 0 of an odd number) adds
// up in both trees.
func TestVolumes(t *testing.T) {
	for n := 2; n <= maxRanks; n++ {
		for r := range n {
			sent := 0
			for _, m := range Ring(n, r).Moves {
				sent += m.Send.Hi - m.Send.Lo
			}
			if sent != 2*(n-1) {
				t.Errorf("ring of %d: rank %d sends %d blocks, want %d", n, r, sent, 2*(n-1))
			}
			heard := [2]int{}
			for _, m := range DoubleTree(n, r).Moves {
				if m.Add {
					heard[m.Recv.Lo]++
				}
			}
			if heard[0] > 0 && heard[1] > 0 && !(n%2 == 1 && r == 0) {
				t.Errorf("double tree of %d: rank %d adds up %v children", n, r, heard)
			}
		}
	}
}

// The slice indices of the ring and its result: STAR artefact, run with five
// members; rank r's slice s is 10^s·(r+1).
func TestRingAsInTheArtefact(t *testing.T) {
	const n = 5
	for r := range n {
		for i, m := range Ring(n, r).Moves {
			send, recv := mod(r-i, n), mod(r-i-1, n)
			if i >= n-1 {
				send, recv = mod(r+1-(i-n+1), n), mod(r-(i-n+1), n)
			}
			if m.Send.Lo != send || m.Recv.Lo != recv || m.To != (r+1)%n || m.From != (r+4)%n {
				t.Errorf("rank %d, step %d: %+v, want to send %d and receive %d", r, i, m, send, recv)
			}
		}
	}
	var data [][][]int64
	for r := range int64(n) {
		data = append(data, [][]int64{{r + 1}, {10 * (r + 1)}, {100 * (r + 1)}, {1000 * (r + 1)}, {10000 * (r + 1)}})
	}
	execute(every(n, Ring), data)
	want := [][]int64{{15}, {150}, {1500}, {15000}, {150000}}
	for r := range data {
		if !reflect.DeepEqual(data[r], want) {
			t.Errorf("rank %d: %v, want %v", r, data[r], want)
		}
	}
}

func TestBlock(t *testing.T) {
	for _, count := range []int{0, 1, 2, 7, 64, 1000003, 1 << 61} {
		for n := 1; n <= maxRanks; n++ {
			next := 0
			for i := range n {
				lo, hi := Block(count, n, i)
				if lo != next || hi-lo < count/n || hi-lo > count/n+1 {
					t.Fatalf("block %d of %d of %d elements: %d to %d, want from %d", i, n, count, lo, hi, next)
				}
				next = hi
			}
			if next != count {
				t.Fatalf("%d blocks of %d elements end at %d", n, count, next)
			}
		}
	}
}

// Between hosts of 3, 1 and 2 ranks a vector travels as if each host were one rank: 2(h-1)/h of it leave and
// enter each host. Among hosts of equal size all ranks share that.
func TestHierarchyCrossesOncePerHost(t *testing.T) {
	for _, hosts := range [][]int{{0, 0, 0, 1, 2, 2}, {0, 1, 2, 0, 1, 2}, {0, 0, 0, 0, 1}, {0, 1, 1, 0, 0, 1, 2, 3, 2, 2, 3}} {
		h := 1 + slices.Max(hosts)
		all := every(len(hosts), func(_, r int) Schedule { return Hierarchy(hosts, r) })
		l := loadOf(all, hosts)
		if want := 2 * float64(h-1) / float64(h); math.Abs(l.remote-want) > 1e-9 {
			t.Errorf("%v: %v of the vector leaves a host, want %v", hosts, l.remote, want)
		}
		if l.remoteSteps != 2*(h-1) {
			t.Errorf("%v: %d steps between hosts, want %d", hosts, l.remoteSteps, 2*(h-1))
		}
	}
	// Two hosts of two: each rank sends half of its half in the first step between hosts, and half of
	// that half's sum in the second.
	hosts := []int{0, 1, 0, 1}
	for r := range hosts {
		remote := 0.0
		s := Hierarchy(hosts, r)
		for _, m := range s.Moves {
			if m.To != None && hosts[m.To] != hosts[r] {
				remote += float64(m.Send.Hi-m.Send.Lo) / float64(s.Blocks)
			}
		}
		if remote != 0.5 {
			t.Errorf("rank %d sends %v of the vector to the other host, want 0.5", r, remote)
		}
	}
}

func TestNumberHosts(t *testing.T) {
	for _, c := range []struct {
		names  []string
		want   []int
		shared bool
	}{
		{[]string{"a", "a"}, []int{0, 0}, false},
		{[]string{"a", "b"}, []int{0, 1}, false},
		{[]string{"b", "a", "b", "", "", "a"}, []int{0, 1, 0, 2, 3, 1}, true},
		{[]string{"", ""}, []int{0, 1}, false},
		{[]string{"x"}, []int{0}, false},
	} {
		if got := numberHosts(c.names); !slices.Equal(got, c.want) || sharedHosts(got) != c.shared {
			t.Errorf("%q: %v, shared %v; want %v, %v", c.names, got, sharedHosts(got), c.want, c.shared)
		}
	}
}

// Where ranks of a host are not adjacent in the ring, or many pairs of halving are on different hosts, the hierarchy is
// cheaper; on hosts of one rank nothing is gained.
func TestPlacedChoosesByPlace(t *testing.T) {
	m := &Model{Alpha: 50e-6, Beta: 1 / 1.2e9, Gamma: 1 / 20e9}
	for _, c := range []struct {
		hosts []int
		size  int64
		want  []Algorithm
	}{
		{[]int{0, 0, 0, 0, 1, 1, 1, 1}, 64 << 20, []Algorithm{AlgorithmHierarchy}},
		// Halving at distances 4 and 2 stays on the host, too.
		{[]int{0, 1, 0, 1, 0, 1, 0, 1}, 64 << 20, []Algorithm{AlgorithmHierarchy, AlgorithmHalving}},
		{[]int{0, 0, 0, 1, 2, 2}, 64 << 20, []Algorithm{AlgorithmHierarchy}},
		{[]int{0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2}, 64, []Algorithm{AlgorithmHierarchyDoubling}},
	} {
		if got := newPlaced(c.hosts).choose(m, c.size); !slices.Contains(c.want, got) {
			t.Errorf("%d bytes on %v: %v, want one of %v", c.size, c.hosts, got, c.want)
		}
	}
	// Measurements of such a group count; those without the hierarchy are of another one.
	hosts := []int{0, 0, 1, 1}
	slow := []Sample{{Ranks: 4, Bytes: 1 << 20, Algorithm: AlgorithmRing, Seconds: 1e-6}}
	m.Samples = slow
	if got := newPlaced(hosts).choose(m, 1<<20); got == AlgorithmRing {
		t.Error("a sample of another placement counts")
	}
	m.Samples = append(slow, Sample{Ranks: 4, Bytes: 1 << 20, Algorithm: AlgorithmHierarchy, Seconds: 1})
	if got := newPlaced(hosts).choose(m, 1<<20); got != AlgorithmRing {
		t.Errorf("%v, although the ring was measured a million times as fast", got)
	}
}

// What enters the busiest host counts as much as what leaves it.
func TestLoadCountsBothWays(t *testing.T) {
	hosts := []int{0, 1, 2}
	in := every(3, func(n, r int) Schedule { return TreeReduce(n, r, 0) })
	out := every(3, func(n, r int) Schedule { return TreeBroadcast(n, r, 0) })
	for what, all := range map[string][]Schedule{"to rank 0": in, "from rank 0": out} {
		if l := loadOf(all, hosts); l.remote != 2 || l.local != 0 || l.remoteSteps != 2 {
			t.Errorf("%s: %+v, want 2 vectors in 2 steps", what, l)
		}
	}
}

func TestVectorsBeginAtACacheLine(t *testing.T) {
	for position := range int64(3 * vectorAlign) {
		if p := padding(position); p < 0 || p >= vectorAlign || (position+int64(p)+headerSize)%vectorAlign != 0 {
			t.Errorf("%d zeros before a header at %d", p, position)
		}
	}
}
