package launch

import (
	"bytes"
	"net"
	"sync/atomic"
	"syscall"

	"star/internal/ports"
)

// electors are the processes that may coordinate a job, if there are several.
type electors struct {
	count   int      // 0: only star-ps 0 may
	addrs   []string // by rank
	results []bytes.Buffer
	lost    int
	at      atomic.Int64 // the last known coordinator
}

// choose gives each process an address; the first one keeps its own.
func (s *electors) choose(first string) error {
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

// begin starts an attempt of the job with these addresses.
func (s *electors) begin(addrs []string) {
	s.addrs, s.results, s.lost = addrs, make([]bytes.Buffer, s.count), 0
}

// ends returns the signal that makes the coordinator end the job: if others may coordinate, SIGTERM would make it hand
// the job over.
func (s *electors) ends(sig syscall.Signal) syscall.Signal {
	if s.count > 0 {
		return syscall.SIGINT
	}
	return sig
}

// returns reports whether a star-ps was ended by a signal and can be replaced: one that may coordinate, or a server, if
// others have copies of its shards. One that ends by itself has a reason, such as the end of the job.
func (s *electors) returns(e exit, copies bool) bool {
	return e.role == "ps" && s.count > 0 && (e.rank < s.count || copies) && e.code() > 128
}

// spares reports whether the job continues after that process has ended: a majority of the electors is left.
func (s *electors) spares(e exit) bool {
	if e.rank >= s.count {
		return false
	}
	s.lost++
	return s.lost <= (s.count-1)/2
}
