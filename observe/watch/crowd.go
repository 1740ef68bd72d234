package watch

import (
	"fmt"
	"slices"
	"time"

	"star"
)

// On a host where all processors are in use every rank waits for one, and the scheduler treats some better than others
// for many seconds. That makes no rank slow: where all ranks of a host wait, each is judged as if it had waited, for
// each second of processor time, as long as the one that waits least.
const (
	crowded = 0.1 // seconds of waiting for a second of processor time, of every rank of the host
	// times as long as any other rank of the host, from which on a rank is kept from the processors by more than chance
	singled   = 3
	crowdOver = 64   // steps over which waits are taken
	throttled = 0.03 // share of the time that a quota holds a rank back, which counts as waiting, too
)

// crowd compares how long the ranks of each host wait for a processor.
type crowd struct {
	hosts       map[string][]int // ranks
	waited, ran []float64        // by rank: seconds, older steps weigh less
	steps       int
	said        map[string]bool
}

func newCrowd(ranks []*rank) *crowd {
	c := &crowd{hosts: map[string][]int{}, said: map[string]bool{}, waited: make([]float64, len(ranks)), ran: make([]float64, len(ranks))}
	for w, r := range ranks {
		c.hosts[r.Host] = append(c.hosts[r.Host], w)
	}
	return c
}

// take returns the records of a step as they are judged. say is called once for each host that is full.
func (c *crowd) take(of []*came, records []star.Record, say func(text string)) (judged []star.Record) {
	keep := 1 - 1.0/crowdOver
	for w, r := range of {
		c.waited[w], c.ran[w] = keep*c.waited[w]+r.Queue, keep*c.ran[w]+r.CPU
	}
	judged = records
	c.steps++
	for host, ranks := range c.hosts {
		var rates []float64 // seconds for each second
		for _, w := range ranks {
			rates = append(rates, c.waited[w]/max(c.ran[w], 1e-9))
		}
		least := slices.Min(rates)
		if len(ranks) < 2 || least < crowded || slices.ContainsFunc(ranks, func(w int) bool { return of[w].GPU > 0 }) {
			continue
		}
		if c.steps >= crowdOver && !c.said[host] {
			c.said[host] = true
			say(fmt.Sprintf("each rank on %s waits for a processor, at least %s for each second that it computes: the host has too few for what runs on it, and a rank that waits longer is not called slow for that", host, short(seconds(least))))
		}
		for i, w := range ranks {
			most := slices.Max(slices.Delete(slices.Clone(rates), i, i+1))
			held, _ := records[w].Telemetry.Get(star.Throttled)
			excess := seconds(of[w].Queue - least*of[w].CPU)
			own := records[w].Compute + records[w].Load
			if rates[i] >= singled*most || held >= throttled || excess <= 0 || own <= 0 {
				continue
			}
			if &judged[0] == &records[0] {
				judged = slices.Clone(records)
			}
			f := max(1-excess.Seconds()/own.Seconds(), 0)
			for _, d := range []*time.Duration{&judged[w].Compute, &judged[w].Load} {
				*d = time.Duration(float64(*d) * f)
			}
			judged[w].Compute = max(judged[w].Compute, time.Microsecond)
		}
	}
	return judged
}
