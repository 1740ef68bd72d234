package worker

import (
	"errors"
	gonet "net"
	"os"
	"strings"
	"testing"
	"time"

	"star/job"
	"star/job/process"
)

// A transport that is forced is a part of the rule that members and coordinator compare, and so are checksums; what is
// chosen by itself is not.
func TestForcedTransportIsAgreedOn(t *testing.T) {
	job := &job.Job{Ring: job.Ring{Transport: "auto", Algorithm: "auto", Checksum: "auto"}}
	free := process.RuleText(job)
	job.Checksum = "on"
	if forced := process.RuleText(job); forced != free+" allreduce-checksum=on" {
		t.Errorf("the rule is %q, with checksums %q", free, forced)
	}
	job.Checksum = "auto"
	job.Transport = "unix"
	if forced := process.RuleText(job); strings.Contains(free, "transport") || forced != free+" allreduce-transport=unix" {
		t.Errorf("the rule is %q, forced %q", free, forced)
	}
}

// TestPackBytes packs texts of several lengths, and unpacks the same.
func TestPackBytes(t *testing.T) {
	for _, text := range []string{"", "a", "12345678", `{"term":3}`} {
		if got := string(unpackBytes(packBytes([]byte(text)))[:len(text)]); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// Shared memory is impossible with TLS, and a job that asks for both gets an error at once.
func TestForcedTransportAndTLS(t *testing.T) {
	for kind, no := range map[string]bool{"shm": true, "unix": true, "tcp": false, "auto": false} {
		if err := checkTransport(kind, true); (err != nil) != no {
			t.Errorf("%s with TLS: %v", kind, err)
		}
		if err := checkTransport(kind, false); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

// Of the many connections that arrive at a ring's first member while it computes the newest are kept: the oldest of
// them say nothing.
func TestMeetingKeepsTheNewest(t *testing.T) {
	l, err := gonet.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m := newSharedListener(l)
	defer m.close()
	var conns []gonet.Conn
	for range cap(m.conns) + 50 {
		c, err := gonet.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c)
	}
	for _, c := range conns[:50] {
		c.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("one of the oldest is still there")
		}
	}
	last := conns[len(conns)-1]
	s := m.open()
	defer s.Close()
	for n := 0; ; n++ {
		timer := time.AfterFunc(20*time.Second, func() { s.Close() })
		c, err := s.Accept()
		timer.Stop()
		if err != nil {
			t.Fatalf("the last of those that came is not among %d", n)
		}
		defer c.Close()
		if c.RemoteAddr().String() == last.LocalAddr().String() {
			return
		}
	}
}
