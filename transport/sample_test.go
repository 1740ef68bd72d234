package transport

import (
	"fmt"
	"math"
	"time"

	"star"
	"star/transport/wire"
)

// sample is one frame of the test vectors.
type sample struct {
	m       wire.Message
	payload []byte
}

// samples has every kind, some with their edges.
var samples = []sample{
	{wire.Hello{
		Service: wire.ServiceCoord, Role: wire.RoleWorker, Job: "lenet", Token: "s3cret", Version: "0.1.0", Host: "node7",
		Rank: -1, Model: "lenet width=1", ModelHash: "5eed", Params: 61706, Buffers: 0, Commit: "194c95e6e2",
	}, []byte(`[{"name":"conv1.w","shape":[6,1,5,5]}]`)},
	{wire.Hello{Service: wire.ServiceShard, Role: wire.RoleWorker, Job: "lenet", Rank: 4095, Shard: 1023, Pass: "12884901889.42.eb5ae78e3f6eb406f250bdde5b4fc817"}, nil},
	{wire.Hello{Service: wire.ServiceCoord, Role: wire.RoleServer, Job: "lenet", Addr: "10.0.0.2:7070", Shards: 2}, nil},
	{wire.Welcome{
		Rank: 3, Workers: 4, Generation: 1, Version: 0, Seed: true, Elapsed: 1500 * time.Millisecond, Step: 42, Term: 3, Pass: "12884901889.42.1d980a1062e50928a87651c84023413b", Batch: 64, Optimizer: `{"name":"momentum","lr":0.05,"momentum":0.9}`,
		Shards: []wire.ShardInfo{{Shard: 0, Addr: "10.0.0.2:7070", From: 0, To: 30853}, {Shard: 1, Addr: "10.0.0.2:7070", From: 30853, To: 61706}},
	}, []byte(`{"mode":"ssgd"}`)},
	{wire.Reject{Exit: 78, Reason: "model 5eed here, d00f there"}, nil},
	{wire.Assign{Shards: []wire.ShardInfo{{Shard: 1, Addr: "", From: 30853, To: 61706}}, Of: 2, Params: 61706, Workers: 4, Generation: 1, Key: "KJ3WQZ2MLCVHO5TYRB4XN6GDFA"}, []byte("[]")},
	{wire.Ready{Shard: 1, Version: 300}, nil},
	{wire.Joined{Worker: 3}, nil},
	{wire.Arrive{Record: star.Record{
		Worker: 3, Step: 41, Basis: 40, At: 90 * time.Second, Compute: 180 * time.Millisecond, Load: 2 * time.Millisecond,
		Push: 900 * time.Microsecond, Wait: 20 * time.Millisecond, Pull: time.Millisecond, Injected: 120 * time.Millisecond,
		Samples: 64, Loss: 0.25, Norm2: 1.5, CPU: 0.875, NetIn: 246824, NetOut: 246824,
		Telemetry: telemetry(map[star.Metric]float64{star.ComputeCPU: 0.5, star.Steal: 0.25, star.GPULinkShare: 1}),
	}}, nil},
	{wire.Arrive{Record: star.Record{Worker: 4095, Step: math.MaxInt64, Samples: 1}}, nil},
	{wire.Stored{Shard: 1, Worker: 3, Step: 41, Sum2: 2.5}, nil},
	{wire.Fire{
		Seq: 42, Version: 41, Samples: 10240, Gradients: []wire.Gradient{{Worker: 0, Step: 41, Weight: 0.25}, {Worker: 3, Step: 41, Weight: 0.25}},
		Dropped: []wire.Gradient{{Worker: 1, Step: 40, Weight: 0}}, Quiet: []star.Worker{1}, NormFirst: true, Report: true,
	}, nil},
	{wire.Fire{Seq: 1, Version: 1}, nil},
	{wire.Fire{Seq: 43, Version: 42, Samples: 10368, Gradients: []wire.Gradient{{Worker: 0, Step: 42, Weight: 0.5}, {Worker: 1, Step: 42, Weight: 0.5}}, Local: 8}, nil},
	{wire.Norm{Shard: 1, Seq: 42}, []byte{1, 2, 3, 4, 5, 6, 7, 8}},
	{wire.Norm{Shard: 1, Seq: 43, Sum2: 0.75}, nil},
	{wire.Apply{Seq: 42, Norm: 0.5, Factor: 1}, nil},
	{wire.Release{Worker: 3, Version: 41, Action: wire.Evaluate, Start: 10496, Count: 64, Pull: true, Eval: 2, From: 7500, To: 10000, Total: 192, Dropped: true, Delay: 3 * time.Millisecond}, nil},
	{wire.Push{Shard: 1, Worker: 3, Step: 41, Basis: 40, Samples: 64}, Floats([]float32{1, -2, 0.5})},
	{wire.Push{Worker: 3, Step: 42, Basis: 41, Samples: 64, Codec: "fp16"}, []byte{0x00, 0x3c, 0x00, 0xc0, 0x00, 0x38}},
	{wire.Params{Shard: 1, Version: 41}, Floats([]float32{0.125, 3})},
	{wire.Pull{Shard: 1, Worker: 3}, nil},
	{wire.Init{Shard: 1, Worker: 0}, Floats([]float32{1})},
	{wire.Buffers{Worker: 3, Eval: 2}, Floats([]float32{0, 1})},
	{wire.EvalResult{Worker: 3, Eval: 2, Version: 41, LossSum: 12.5, Correct: 2431, Count: 2500, Took: 300 * time.Millisecond}, nil},
	{wire.Save{Seq: 42, Version: 41, ID: "step-41"}, nil},
	{wire.Saved{Shard: 1, ID: "step-41", Err: "disk full"}, []byte("{}")},
	{wire.Leave{Worker: -1, Exit: 143, Reason: "SIGTERM"}, nil},
	{wire.Control{Args: []string{"mode", "x=3"}}, nil},
	{wire.Reply{Err: "unknown mode \"y=3\""}, []byte("{}")},
	{wire.Ping{Seq: 1, Sent: 1795219200000000000, Want: 1 << 20}, []byte{0xff}},
	{wire.Pong{Seq: 1, Sent: 1795219200000000000, Now: math.MaxInt64}, nil},
	{wire.Ring{
		Generation: 2, From: 41, Members: []star.Worker{0, 1, 3}, Addr: "10.0.0.2:40123", Riders: []wire.Rider{{Worker: 2, Parent: 0}}, ParentAddr: "10.0.0.2:40124",
		Of: 256, Wait: 50 * time.Millisecond, MaxStale: 8, Now: true, Tell: 50 * time.Millisecond,
	}, nil},
	{wire.Ring{Generation: 1, From: -1}, nil},
	{wire.Formed{Worker: 3, Generation: 2, Version: 41}, nil},
	{wire.Tally{Worker: 3, Generation: 2, Version: 42, Hash: 0xfeedbeef, Carried: []wire.Gradient{{Worker: 2, Step: 17, Weight: 0.25}}, Dropped: []wire.Gradient{{Worker: 4, Step: 3, Weight: 0}}, Sum2: 0.75, Samples: []int{8, 3}, Behind: []int{2}}, nil},
	{wire.Fault{Worker: 3, Generation: 2, Suspect: -1, Reason: "no byte has moved for 30s"}, nil},
	{wire.Compression{Worker: 3, Version: 1000, Codec: "int8", Why: "int8: 1000 values at 25 MB/s take 0.04 ms in place of 0.16 ms"}, nil},
	{wire.Pong{Seq: -1, Sent: math.MinInt64, Now: -33}, nil},
	{wire.Branch{Worker: 2, Step: 41, Parent: 0, ParentAddr: "10.0.0.2:40124", Relay: true, Children: []wire.Child{{Worker: 3, Step: 17}, {Worker: 4, Step: 40}}, Below: []wire.Below{{Child: 3, Worker: 3, Step: 17, Samples: 32}, {Child: 3, Worker: 5, Step: 9, Samples: 16}, {Child: 4, Worker: 4, Step: 40, Samples: 32}}}, nil},
	{wire.Branch{Worker: 0, Step: 41, Parent: -1, Children: []wire.Child{{Worker: 2, Step: 41}}}, nil},
	{wire.Bundle{Worker: 2, Step: 41, Members: []wire.Share{{Worker: 2, Step: 41, Samples: 64}, {Worker: 3, Step: 17, Samples: 32}}}, Floats([]float32{1, -2, 0.5})},
	{wire.Detach{Worker: 3, Step: 17}, nil},
	{wire.Want{Worker: 3, Version: 41}, nil},
	{wire.Hello{Service: wire.ServiceCluster, Role: wire.RoleServer, Job: "rack1", Version: "0.1.0", Host: "node7", Rank: 0}, nil},
	{wire.Enlist{
		Job: "lenet", Life: "9f3c", Rank: 0, Host: "node7", Actuator: "pace", Model: "lenet width=1", Params: 61706, Workers: 4, Servers: 1, Fixed: true,
		Capacity: wire.Amounts{CPU: 16, In: 1.25e9, Out: 1.25e9}, Freed: wire.Amounts{CPU: 0.5, In: 1e6, Out: 1e6}, CostCPU: 4.5, CostNet: 2.25,
	}, nil},
	{wire.Usage{
		Seq: 7, Step: 41, Mode: "ssgd", Sync: true, Own: wire.Amounts{CPU: 0.5, In: 1e6, Out: 2e6}, Host: wire.Amounts{CPU: 3.25, In: 4e6, Out: 4e6},
		Times: []time.Duration{180 * time.Millisecond, 0, 540 * time.Millisecond}, Delay: 30 * time.Millisecond,
		Leases: []wire.Lease{{Name: "tc-4711-1", State: "stale", What: "out=100mbit on interface eth0", Owner: "worker 2 of job lenet", Why: "process 4711 is gone"}}, Free: 8 << 30,
	}, nil},
	{wire.Usage{Seq: 1}, nil},
	{wire.Ask{ID: 2, Mode: "x=3", Extra: wire.Amounts{CPU: 0.25, In: 3e6, Out: 3e6}, Lag: 360 * time.Millisecond, Timeout: 2 * time.Second}, nil},
	{wire.Grant{ID: 2, OK: true, Lease: 10 * time.Second, Why: "0.25 of 12.8 processors that are free"}, nil},
	{wire.Order{ID: 5, Delay: 30 * time.Millisecond, Early: 120 * time.Millisecond, Lease: 10 * time.Second, For: "lenet", Why: "job lenet leaves SSGD"}, nil},
	{wire.Obeyed{ID: 5, Delay: 30 * time.Millisecond, Err: "no actuator"}, nil},
	{wire.Yield{ID: 2}, nil},
	{wire.Adopt{Move: 1, Stage: wire.Own, Shard: 1, Addr: "10.0.0.2:7070", From: 30853, To: 61706}, nil},
	{wire.Hand{Move: 1, Stage: wire.Keep, Shard: 1, Seq: 42}, nil},
	{wire.Moved{Move: 1, Stage: wire.Loaded, Shard: 1, Version: 41, Err: "lost the server that has it"}, nil},
	{wire.State{Shard: 1, Seq: 42, Version: 41, Rule: "momentum", Steps: 41, Slots: 1, Pending: 3, Lives: []int64{0, 12884901889}}, Floats([]float32{0.125, 3})},
	{wire.Slot{Shard: 1, Name: "momentum"}, Floats([]float32{0.5, -1})},
	{wire.Route{Worker: 3, Shard: 1, Addr: "10.0.0.3:7070"}, nil},
	{wire.Cancel{Worker: 3, Step: 41}, nil},
	{wire.Computed{Worker: 3, Generation: 2, Version: 300, Samples: 48}, nil},
	{wire.Close{Generation: 2, Version: 300, First: []star.Worker{0, 1, 3}, Late: []star.Worker{2}, Total: 240}, nil},
	{wire.Poison{Shard: -1, Worker: 3, Step: 41, Cause: "exploding", Value: 12345, Where: "conv1.weight"}, nil},
	{wire.Ballot{From: 2, To: 0}, []byte{8, 8, 16, 1}},
	{wire.Standing{Term: 4, Seq: 42, Shards: []wire.ShardVersion{{Shard: 0, Version: 41}, {Shard: 1, Version: -1}}, Applied: []wire.Apply{{Seq: 41, Norm: 2.5, Factor: .5}}}, AppendFrame(nil, wire.Fire{Seq: 42, Version: 41}.AppendTo(nil), []byte{1})},
	{wire.Elsewhere{Addr: "10.0.0.3:7070"}, nil},
	{wire.View{Shard: 1, Term: 3, Holders: []wire.Holder{{Rank: 2, Addr: "10.0.0.3:7070"}, {Rank: 0, Addr: ":7070"}}, From: 30853, To: 61706}, nil},
	{wire.Held{Shard: 1, Term: 3, Seq: 42}, nil},
	{wire.Turn{Shard: 1, Worker: 3, Term: 3}, nil},
	{wire.Halt{Worker: 3, Reason: "the loss is low enough"}, nil},
	{wire.Ahead{Seq: 42, Version: 41, Samples: 10240, Gradients: []wire.Gradient{{Worker: 0, Step: 41, Weight: 0.5}}}, nil},
}

func telemetry(vs map[star.Metric]float64) (t star.Telemetry) {
	for m, v := range vs {
		t.Set(m, v)
	}
	return t
}

// parseAny parses a header of kind k.
func parseAny(k wire.Kind, b []byte) (wire.Message, error) {
	if !k.Valid() {
		return nil, fmt.Errorf("no such kind: %v", k)
	}
	return parsers[k](b)
}

func as[M wire.Message](m M, err error) (wire.Message, error) { return m, err }
