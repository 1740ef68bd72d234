package main

import (
	"bytes"
	"net"
	"sync/atomic"
)

// seats are the processes that may coordinate a job, where several may.
type seats struct {
	count   int      // 0: only star-ps 0 may
	addrs   []string // by rank
	results []bytes.Buffer
	lost    int
	at      atomic.Int64 // who coordinates, as was seen last
}

// choose gives each one an address, the first one that which it has already.
func (s *seats) choose(first string) error {
	if s.count == 0 {
		return nil
	}
	host, _, err := net.SplitHostPort(first)
	if err != nil {
		return err
	}
	s.addrs, s.results, s.lost = []string{first}, make([]bytes.Buffer, s.count), 0
	for len(s.addrs) < s.count {
		l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
		if err != nil {
			return err
		}
		defer l.Close() // so that each one is another
		s.addrs = append(s.addrs, l.Addr().String())
	}
	return nil
}

// spares says whether the job goes on although that process has ended: a majority of those that may coordinate is left.
func (s *seats) spares(e exit) bool {
	if e.rank >= s.count {
		return false
	}
	s.lost++
	return s.lost <= (s.count-1)/2
}
