package placement

import (
	"math"
	"slices"
)

// slab is a device, what is left of one, or what a worker wants of one.
type slab struct {
	part   float64 // of a GPU
	memory float64 // bytes; +Inf: not limited
}

// holds says whether there is room for a demand.
func (s slab) holds(d slab) bool {
	return s.part+tolerance >= d.part && s.memory >= d.memory*(1-tolerance)
}

func (s slab) less(t slab) bool {
	if s.part != t.part {
		return s.part < t.part
	}
	return s.memory < t.memory
}

// weight is what a demand counts that finds no room: a small part of a GPU with much
// memory is not nothing.
func (s slab) weight() float64 { return max(s.part, 0.01) }

func (s slab) minus(d slab) slab { return slab{s.part - d.part, s.memory - d.memory} }
func (s slab) plus(d slab) slab  { return slab{s.part + d.part, s.memory + d.memory} }

// wants is what a task takes of a device.
func (t *Task) wants() slab { return slab{t.GPU, t.GPUMemory} }

// slabs are the devices of a host.
func (h *Host) slabs() []slab {
	var ss []slab
	for d, part := range h.GPUs {
		s := slab{part, math.Inf(1)}
		if len(h.GPUMemory) > 0 {
			s.memory = h.GPUMemory[d]
		}
		ss = append(ss, s)
	}
	return ss
}

// seating puts demands on devices.
type seating struct {
	device []int // of each demand; -1: none has room
	room   []slab
	order  []int
	empty  []bool
}

// seat finds a device for each demand, in the given order of importance: one of its
// own if that can be had for all, else few share. It reports how much finds no
// room, and how many demands share a device.
func (s *seating) seat(sizes, demands []slab) (excess float64, crowd int) {
	s.order = s.order[:0]
	for i := range demands {
		s.order = append(s.order, i)
	}
	slices.SortStableFunc(s.order, func(a, b int) int {
		switch {
		case demands[b].less(demands[a]):
			return -1
		case demands[a].less(demands[b]):
			return 1
		}
		return 0
	})
	s.device = slices.Grow(s.device[:0], len(demands))[:len(demands)]
	if excess = s.spread(sizes, demands); excess > 0 {
		if e := s.fill(sizes, demands); e > 0 {
			budget := 4000
			s.start(sizes)
			if s.search(demands, 0, &budget) {
				e = 0
			} else {
				e = s.fill(sizes, demands)
			}
			excess = e
		} else {
			excess = 0
		}
	}
	if crowd = s.crowd(); crowd > 0 && len(demands) <= len(sizes) && excess == 0 {
		was := slices.Clone(s.device)
		if s.own(sizes, demands) {
			crowd = 0
		} else {
			copy(s.device, was)
		}
	}
	return excess, crowd
}

// crowd counts the demands that share a device.
func (s *seating) crowd() (crowd int) {
	for i, d := range s.device {
		for k, e := range s.device {
			if i != k && d >= 0 && d == e {
				crowd++
				break
			}
		}
	}
	return crowd
}

// own gives each demand a device of its own, if there is a way: where part and memory
// disagree about which device is the larger one, spread may not find it. (A matching by augmenting
// paths.)
func (s *seating) own(sizes, demands []slab) bool {
	owner := make([]int, len(sizes))
	for d := range owner {
		owner[d] = -1
	}
	seen := make([]bool, len(sizes))
	var find func(i int) bool
	find = func(i int) bool {
		for d, size := range sizes {
			if seen[d] || !size.holds(demands[i]) {
				continue
			}
			seen[d] = true
			if owner[d] < 0 || find(owner[d]) {
				owner[d] = i
				return true
			}
		}
		return false
	}
	for i := range demands {
		clear(seen)
		if !find(i) {
			return false
		}
	}
	for d, i := range owner {
		if i >= 0 {
			s.device[i] = d
		}
	}
	return true
}

func (s *seating) start(sizes []slab) {
	s.room = append(s.room[:0], sizes...)
	s.empty = s.empty[:0]
	for range sizes {
		s.empty = append(s.empty, true)
	}
	for i := range s.device {
		s.device[i] = -1
	}
}

func (s *seating) put(i, d int, demand slab) {
	s.device[i] = d
	s.room[d] = s.room[d].minus(demand)
	s.empty[d] = false
}

// spread gives each demand, the greatest first, the smallest device that is empty
// and large enough, which finds one for each if there is one for each; then the
// one with the most room.
func (s *seating) spread(sizes, demands []slab) (excess float64) {
	s.start(sizes)
	for _, i := range s.order {
		best := -1
		for d, room := range s.room {
			if !room.holds(demands[i]) {
				continue
			}
			switch {
			case best < 0, s.empty[d] && !s.empty[best]:
				best = d
			case s.empty[d] != s.empty[best]:
			case s.empty[d] && room.less(s.room[best]), !s.empty[d] && s.room[best].less(room):
				best = d
			}
		}
		if best < 0 {
			excess += demands[i].weight()
			continue
		}
		s.put(i, best, demands[i])
	}
	return excess
}

// fill gives each demand, the greatest first, the device where the least room is
// left.
func (s *seating) fill(sizes, demands []slab) (excess float64) {
	s.start(sizes)
	for _, i := range s.order {
		best := -1
		for d, room := range s.room {
			if room.holds(demands[i]) && (best < 0 || room.less(s.room[best])) {
				best = d
			}
		}
		if best < 0 {
			excess += demands[i].weight()
			continue
		}
		s.put(i, best, demands[i])
	}
	return excess
}

// search tries everything, within a budget of steps.
func (s *seating) search(demands []slab, k int, budget *int) bool {
	if k == len(s.order) {
		return true
	}
	i := s.order[k]
	for d := range s.room {
		if *budget--; *budget < 0 {
			return false
		}
		if !s.room[d].holds(demands[i]) || slices.Contains(s.room[:d], s.room[d]) {
			continue // too small, or as good as one that was tried
		}
		was := s.room[d]
		s.room[d] = was.minus(demands[i])
		s.device[i] = d
		if s.search(demands, k+1, budget) {
			return true
		}
		s.room[d] = was
	}
	return false
}

// crowd says how much of the workers' GPU demand finds no room on host h, and how
// many of them share a device.
func (p *problem) crowd(h int, on []int) (excess float64, crowd int) {
	p.demands = p.demands[:0]
	most, sum := slab{}, 0.0
	for _, i := range on {
		if w := p.tasks[i].wants(); w.part > 0 {
			p.demands = append(p.demands, w)
			most = slab{max(most.part, w.part), max(most.memory, w.memory)}
			sum += w.part
		}
	}
	if lack := sum - p.gpus[h]; lack > tolerance {
		return lack, 0 // no need to look at single devices
	}
	if len(p.demands) <= len(p.slabs[h]) && p.least[h].part >= most.part && p.least[h].memory >= most.memory {
		return 0, 0 // one each, whichever
	}
	return p.seating.seat(p.slabs[h], p.demands)
}

// crush says how much of the GPU demand of these tasks finds no room on host h: of parts of GPUs or,
// where those would suffice, of one GPU's memory in bytes.
func (p *problem) crush(h int, on []int) (excess, memory float64) {
	if excess, _ = p.crowd(h, on); excess <= 0 {
		return 0, 0
	}
	var bare []slab
	var wants []slab
	for _, i := range on {
		if w := p.tasks[i].wants(); w.part > 0 {
			wants = append(wants, w)
			bare = append(bare, slab{part: w.part})
		}
	}
	if e, _ := p.seating.seat(p.slabs[h], bare); e > 0 {
		return excess, 0
	}
	p.seating.seat(p.slabs[h], wants)
	memory = math.Inf(1)
	for k, d := range p.seating.device {
		for at, size := range p.slabs[h] {
			if d >= 0 {
				continue
			}
			room := size.memory
			for o, e := range p.seating.device {
				if e == at {
					room -= wants[o].memory
				}
			}
			if lack := wants[k].memory - room; lack > 0 {
				memory = min(memory, lack)
			}
		}
	}
	if math.IsInf(memory, 1) {
		return excess, 0
	}
	return 0, memory
}

// devices gives each GPU worker among the tasks of host h its device. Where some
// must share, those share who complement each other (see mates). -1 for the others.
func (p *problem) devices(h int, on []int) map[int]int {
	var workers []int
	var demands []slab
	for _, i := range on {
		if w := p.tasks[i].wants(); w.part > 0 {
			workers = append(workers, i)
			demands = append(demands, w)
		}
	}
	out := map[int]int{}
	if len(workers) == 0 {
		return out
	}
	sizes := p.slabs[h]
	excess, crowd := p.seating.seat(sizes, demands)
	for k, i := range workers {
		out[i] = p.seating.device[k]
	}
	if crowd == 0 {
		return out
	}
	// Pairs, then pairs of pairs, until there are as many groups as devices.
	groups := p.share(workers, len(sizes), largest(sizes))
	var sums []slab
	for _, g := range groups {
		sum := slab{}
		for _, i := range g {
			sum = sum.plus(p.tasks[i].wants())
		}
		sums = append(sums, sum)
	}
	if e, c := p.seating.seat(sizes, sums); e <= excess && c == 0 {
		for k, g := range groups {
			for _, i := range g {
				out[i] = p.seating.device[k]
			}
		}
	}
	return out
}

// largest has as much of each as any device.
func largest(sizes []slab) (most slab) {
	for _, s := range sizes {
		most = slab{max(most.part, s.part), max(most.memory, s.memory)}
	}
	return most
}
