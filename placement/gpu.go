package placement

import "slices"

// seating puts demands on devices.
type seating struct {
	device []int // of each demand; -1: none has room
	room   []float64
	order  []int
	empty  []bool
}

// seat finds a device for each demand, in the given order of importance: one of its
// own if that can be had for all, else few share. It reports how much finds no
// room, and how many demands share a device.
func (s *seating) seat(sizes, demands []float64) (excess float64, crowd int) {
	s.order = s.order[:0]
	for i := range demands {
		s.order = append(s.order, i)
	}
	slices.SortStableFunc(s.order, func(a, b int) int {
		switch {
		case demands[a] > demands[b]:
			return -1
		case demands[a] < demands[b]:
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
	for i, d := range s.device {
		for k, e := range s.device {
			if i != k && d >= 0 && d == e {
				crowd++
				break
			}
		}
	}
	return excess, crowd
}

func (s *seating) start(sizes []float64) {
	s.room = append(s.room[:0], sizes...)
	s.empty = s.empty[:0]
	for range sizes {
		s.empty = append(s.empty, true)
	}
	for i := range s.device {
		s.device[i] = -1
	}
}

func (s *seating) put(i, d int, demand float64) {
	s.device[i] = d
	s.room[d] -= demand
	s.empty[d] = false
}

// spread gives each demand, the greatest first, the smallest device that is empty
// and large enough, which finds one for each if there is one for each; then the
// one with the most room.
func (s *seating) spread(sizes, demands []float64) (excess float64) {
	s.start(sizes)
	for _, i := range s.order {
		best := -1
		for d, room := range s.room {
			if room+tolerance < demands[i] {
				continue
			}
			switch {
			case best < 0, s.empty[d] && !s.empty[best]:
				best = d
			case s.empty[d] != s.empty[best]:
			case s.empty[d] && room < s.room[best], !s.empty[d] && room > s.room[best]:
				best = d
			}
		}
		if best < 0 {
			excess += demands[i]
			continue
		}
		s.put(i, best, demands[i])
	}
	return excess
}

// fill gives each demand, the greatest first, the device where the least room is
// left.
func (s *seating) fill(sizes, demands []float64) (excess float64) {
	s.start(sizes)
	for _, i := range s.order {
		best := -1
		for d, room := range s.room {
			if room+tolerance >= demands[i] && (best < 0 || room < s.room[best]) {
				best = d
			}
		}
		if best < 0 {
			excess += demands[i]
			continue
		}
		s.put(i, best, demands[i])
	}
	return excess
}

// search tries everything, within a budget of steps.
func (s *seating) search(demands []float64, k int, budget *int) bool {
	if k == len(s.order) {
		return true
	}
	i := s.order[k]
	for d := range s.room {
		if *budget--; *budget < 0 {
			return false
		}
		if s.room[d]+tolerance < demands[i] || slices.Contains(s.room[:d], s.room[d]) {
			continue // too small, or as good as one that was tried
		}
		s.room[d] -= demands[i]
		s.device[i] = d
		if s.search(demands, k+1, budget) {
			return true
		}
		s.room[d] += demands[i]
	}
	return false
}

// crowd says how much of the workers' GPU demand finds no room on host h, and how
// many of them share a device.
func (p *problem) crowd(h int, on []int) (excess float64, crowd int) {
	p.demands = p.demands[:0]
	most, sum := 0.0, 0.0
	for _, i := range on {
		if g := p.tasks[i].GPU; g > 0 {
			p.demands = append(p.demands, g)
			most = max(most, g)
			sum += g
		}
	}
	if lack := sum - p.gpus[h]; lack > tolerance {
		return lack, 0 // no need to look at single devices
	}
	if len(p.demands) <= len(p.hosts[h].GPUs) && most <= p.least[h] {
		return 0, 0 // one each, whichever
	}
	return p.seating.seat(p.hosts[h].GPUs, p.demands)
}

// devices gives each GPU worker among the tasks of host h its device. Where some
// must share, those share who complement each other (see mates). -1 for the others.
func (p *problem) devices(h int, on []int) map[int]int {
	var workers []int
	var demands []float64
	for _, i := range on {
		if g := p.tasks[i].GPU; g > 0 {
			workers = append(workers, i)
			demands = append(demands, g)
		}
	}
	out := map[int]int{}
	if len(workers) == 0 {
		return out
	}
	sizes := p.hosts[h].GPUs
	excess, crowd := p.seating.seat(sizes, demands)
	for k, i := range workers {
		out[i] = p.seating.device[k]
	}
	if crowd == 0 {
		return out
	}
	// Pairs, then pairs of pairs, until there are as many groups as devices.
	groups := p.share(workers, len(sizes), slices.Max(sizes))
	var sums []float64
	for _, g := range groups {
		sum := 0.0
		for _, i := range g {
			sum += p.tasks[i].GPU
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
