package ps

import "testing"

// The one that fetches a copy and the coordinator's word to forget it may both find that it is not to be.
func TestForgottenTwice(t *testing.T) {
	s, h, other := &Server{}, &host{quit: make(chan struct{})}, &host{quit: make(chan struct{})}
	s.hosts = []*host{h, other}
	s.remove(h)
	s.remove(h) // closed a closed channel
	if hosts := s.hosted(); len(hosts) != 1 || hosts[0] != other {
		t.Errorf("%d shards are left, want the other one", len(hosts))
	}
	select {
	case <-h.quit:
	default:
		t.Error("it goes on")
	}
}
