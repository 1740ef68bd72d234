package cluster

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star/internal/flightrecorder"
	"star/transport"
	"star/transport/wire"
)

// waiting reports whether an entry of the list of waits contains all of words.
func waiting(words ...string) bool {
	for _, w := range flightrecorder.List() {
		all := true
		for _, word := range words {
			all = all && strings.Contains(w.String(), word)
		}
		if all {
			return true
		}
	}
	return false
}

// Service and client say what they wait for, for how long, and no longer than that.
func TestWaitsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := begin(t, Config{})
		p := b.process(wire.RoleServer, wire.Enlist{Job: "a", Workers: 2, Host: "h"}, wire.Usage{})
		defer p.kill()
		time.Sleep(500 * time.Millisecond)
		synctest.Wait()
		for _, words := range [][]string{
			{"the service of cluster rack1: waits for a message of a member, or something to be due"},
			{"the service of cluster rack1: waits for the next message of a member (", "at most 10s"},
			{"the client of cluster rack1: waits for the next message of the resource service (service:1), at most 10s"},
		} {
			if !waiting(words...) {
				t.Errorf("nobody waits as %q: %v", words, flightrecorder.List())
			}
		}
		if waiting("waits for a resource service") || waiting("a member to take a message") {
			t.Errorf("somebody waits for what is there: %v", flightrecorder.List())
		}
		b.stop()
		time.Sleep(time.Second)
		if !waiting("the client of cluster rack1: waits for a resource service (", "until it is reachable: an attempt is made at least every 10s") {
			t.Errorf("nobody waits for the service, which is gone: %v", flightrecorder.List())
		}
		p.kill()
		synctest.Wait()
		if waiting("cluster rack1") {
			t.Errorf("somebody waits when all is over: %v", flightrecorder.List())
		}
	})
}

// A question without an answer is on the list until its time is over.
func TestQuestionIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &bubble{t: t, pipe: new(transport.Pipe)}
		l, err := b.pipe.Listen(addr)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			transport.Serve(ctx, l, transport.Config{}, func(c transport.Conn, _ wire.Hello, _ []byte) {
				defer c.Close()
				text, _ := json.Marshal(greeting{Cluster: "rack1", Lease: 10 * time.Second})
				transport.Send(c, wire.Welcome{Rank: -1}, text)
				for {
					if _, err := c.Recv(); err != nil {
						return
					}
				}
			})
		}()
		p := b.process(wire.RoleServer, wire.Enlist{Job: "a", Workers: 2, Host: "h"}, wire.Usage{})
		time.Sleep(500 * time.Millisecond)
		const line = "the client of cluster rack1: waits for the answer of the resource service to question 1 (mode asgd), at most 2s"
		said := make(chan bool, 1)
		p.Ask("asgd", wire.Amounts{}, 0, func(ok bool, _ string) { said <- ok })
		time.Sleep(time.Second)
		if !waiting(line) {
			t.Errorf("nobody waits for the answer: %v", flightrecorder.List())
		}
		if ok := <-said; ok || waiting("question 1") {
			t.Errorf("after the answer %v: %v", ok, flightrecorder.List())
		}
		p.kill()
		cancel()
		<-ended
	})
}
