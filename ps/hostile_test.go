package ps

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"star"
	"star/transport"
	"star/transport/transporttest"
	"star/transport/wire"
)

// Whatever one worker says to a shard, the shard and the others go on: every message, with every field absurd, beside
// an honest worker.
func TestHostileWorkers(t *testing.T) {
	for _, empty := range transporttest.Messages {
		if testing.Short() && empty.Kind() != wire.KindPush {
			continue
		}
		t.Run(empty.Kind().String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				const n = 16
				pipe := &transport.Pipe{}
				j := start(t, jobConfig{
					net: pipe, addr: "ps", params: n, shards: 1, workers: 2, quorum: 1,
					unheard: map[star.Worker]bool{1: true}, server: ServerConfig{Measure: true},
				})
				var names []string
				var variants []wire.Message
				for name, m := range transporttest.Absurd(transporttest.Fill(empty, map[string]any{"Worker": 1, "Rank": 1, "Samples": 4, "Basis": 1})) {
					names, variants = append(names, name), append(variants, m)
				}
				done := make(chan error, 1)
				steps := len(variants) + 2
				go func() {
					done <- j.work(pipe, 0, n, steps, func(_ int, params, grad []float32) {
						time.Sleep(2 * time.Second)
						for i := range grad {
							grad[i] = 1
						}
					}, func(version int64, params []float32) {
						for i, v := range params {
							if v-v != 0 {
								t.Errorf("element %d of version %d is %v", i, version, v)
							}
						}
					})
				}()
				time.Sleep(time.Second)
				for i, m := range variants {
					c := j.rogue(t, 1)
					var payload []byte
					switch m.Kind() {
					case wire.KindPush, wire.KindInit, wire.KindParams:
						payload = transport.Floats(make([]float32, n))
					}
					transport.Send(c, m, payload)
					time.Sleep(2 * time.Second)
					c.Close()
					if v := j.server.hosted()[0].version.Load(); v < int64(i) {
						t.Fatalf("after %s the shard is at version %d, and %d updates were due", names[i], v, i)
					}
				}
				if err := <-done; err != nil {
					t.Errorf("the honest worker: %v", err)
				}
				if err := j.stop(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// Initial parameters that are not finite are refused from any sender: the job waits for others.
func TestInitThatIsNotFinite(t *testing.T) {
	for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
		t.Run(fmt.Sprint(bad), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pipe := &transport.Pipe{}
				j := start(t, jobConfig{net: pipe, addr: "ps", params: 4, shards: 1, workers: 2, quorum: 1, server: ServerConfig{NewRule: plain(0.1, 0)}})
				c := j.rogue(t, 1)
				defer c.Close()
				if err := transport.Send(c, wire.Init{Worker: 1}, transport.Floats([]float32{1, bad, 1, 1})); err != nil {
					t.Fatal(err)
				}
				c.SetReadDeadline(time.Now().Add(10 * time.Second))
				if _, err := c.Recv(); err == nil || strings.Contains(err.Error(), "timeout") {
					t.Errorf("the connection goes on: %v", err)
				}
				if v := j.server.hosted()[0].version.Load(); v >= 0 {
					t.Errorf("the shard is at version %d", v)
				}
				j.stop()
			})
		})
	}
}
