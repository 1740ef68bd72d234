package placement

import (
	"math"
	"slices"
)

// slab is a device, the free part of a device, or a worker's demand for one.
type slab struct {
	part   float64 // of a GPU
	memory float64 // bytes; +Inf: not limited
}

// holds reports whether a demand fits.
func (s slab) holds(d slab) bool {
	return s.part+tolerance >= d.part && s.memory >= d.memory*(1-tolerance)
}

func (s slab) less(t slab) bool {
	if s.part != t.part {
		return s.part < t.part
	}
	return s.memory < t.memory
}

// weight is the weight of a demand that does not fit. It is not zero for a small part of a GPU with much memory.
func (s slab) weight() float64 { return max(s.part, 0.01) }

func (s slab) minus(d slab) slab { return slab{s.part - d.part, s.memory - d.memory} }
func (s slab) plus(d slab) slab  { return slab{s.part + d.part, s.memory + d.memory} }

// wants is a task's demand for a device.
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

// packer assigns demands to devices.
type packer struct {
	device []int // by demand; -1: no device has room
	room   []slab
	order  []int
	empty  []bool
}

// pack assigns a device to each demand: an exclusive one for each if possible, else with little sharing. It returns the
// demand that does not fit, and the number of demands that share a device.
func (s *packer) pack(sizes, demands []slab) (excess float64, crowd int) {
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
func (s *packer) crowd() (crowd int) {
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

// own assigns an exclusive device to each demand, if possible: where part and memory disagree about which device is
// larger, spread may not find it. (A matching by augmenting paths.)
func (s *packer) own(sizes, demands []slab) bool {
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

func (s *packer) start(sizes []slab) {
	s.room = append(s.room[:0], sizes...)
	s.empty = s.empty[:0]
	for range sizes {
		s.empty = append(s.empty, true)
	}
	for i := range s.device {
		s.device[i] = -1
	}
}

func (s *packer) put(i, d int, demand slab) {
	s.device[i] = d
	s.room[d] = s.room[d].minus(demand)
	s.empty[d] = false
}

// spread assigns to each demand, the largest first, the smallest empty device that is large enough, which finds one for
// each if possible; else the device with the most room.
func (s *packer) spread(sizes, demands []slab) (excess float64) {
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

// fill assigns to each demand, the largest first, the device with the least room left afterwards.
func (s *packer) fill(sizes, demands []slab) (excess float64) {
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

// search tries all assignments, within a budget of steps.
func (s *packer) search(demands []slab, k int, budget *int) bool {
	if k == len(s.order) {
		return true
	}
	i := s.order[k]
	for d := range s.room {
		if *budget--; *budget < 0 {
			return false
		}
		if !s.room[d].holds(demands[i]) || slices.Contains(s.room[:d], s.room[d]) {
			continue // too small, or equal to one that was tried
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

// crowd returns the GPU demand of the workers that does not fit on host h, and the number of workers that share a
// device.
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
	return p.packer.pack(p.slabs[h], p.demands)
}

// crush returns the GPU demand of these tasks that does not fit on host h: of parts of GPUs or, where those suffice, of
// one GPU's memory in bytes.
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
	if e, _ := p.packer.pack(p.slabs[h], bare); e > 0 {
		return excess, 0
	}
	p.packer.pack(p.slabs[h], wants)
	memory = math.Inf(1)
	for k, d := range p.packer.device {
		for at, size := range p.slabs[h] {
			if d >= 0 {
				continue
			}
			room := size.memory
			for o, e := range p.packer.device {
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

// devices assigns a device to each GPU worker among the tasks of host h; -1 for other tasks. Where workers must share,
// those that complement each other share (see mates).
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
	excess, crowd := p.packer.pack(sizes, demands)
	for k, i := range workers {
		out[i] = p.packer.device[k]
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
	if e, c := p.packer.pack(sizes, sums); e <= excess && c == 0 {
		for k, g := range groups {
			for _, i := range g {
				out[i] = p.packer.device[k]
			}
		}
	}
	return out
}

// largest has the maximum of each value over the devices.
func largest(sizes []slab) (most slab) {
	for _, s := range sizes {
		most = slab{max(most.part, s.part), max(most.memory, s.memory)}
	}
	return most
}
