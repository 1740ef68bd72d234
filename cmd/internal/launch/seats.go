package launch

import (
	"bytes"
	"net"
	"sync/atomic"
	"syscall"

	"star/internal/ports"
)

// seats are the processes that may coordinate a job, where several may.
type seats struct {
	count   int      // 0: only star-ps 0 may
	addrs   []string // by rank
	results []bytes.Buffer
	lost    int
	at      atomic.Int64 // the process that was last seen to coordinate
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
	addrs := []string{first}
	for len(addrs) < s.count {
		addr, err := ports.Reserve(host, addrs...)
		if err != nil {
			return err
		}
		addrs = append(addrs, addr)
	}
	s.begin(addrs)
	return nil
}

// begin is for an attempt of the job in which they have these addresses.
func (s *seats) begin(addrs []string) {
	s.addrs, s.results, s.lost = addrs, make([]bytes.Buffer, s.count), 0
}

// ends is the signal by which the one that coordinates ends the job: where others may coordinate, SIGTERM would have it hand the job over.
func (s *seats) ends(sig syscall.Signal) syscall.Signal {
	if s.count > 0 {
		return syscall.SIGINT
	}
	return sig
}

// returns says whether a star-ps was ended by a signal, so that another one can have its place: that of one that may coordinate, or, where others have
// copies of its shards, that of a server. One that ends by itself has a reason, such as the end of the job.
func (s *seats) returns(e exit, copies bool) bool {
	return e.role == "ps" && s.count > 0 && (e.rank < s.count || copies) && e.code() > 128
}

// spares says whether the job goes on although that process has ended: a majority of those that may coordinate is left.
func (s *seats) spares(e exit) bool {
	if e.rank >= s.count {
		return false
	}
	s.lost++
	return s.lost <= (s.count-1)/2
}
