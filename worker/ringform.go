package worker

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	gonet "net"
	"slices"
	"time"

	"star"
	"star/allreduce"
	"star/coord/engine"
	"star/coord/session"
	"star/internal/compress"
	"star/internal/flightrecorder"
	"star/job"
	"star/job/process"
	"star/train/optim"
	"star/transport"
	"star/transport/wire"
)

// Joining a ring (join) takes these steps, on all members:
//
//	leaveGroup   close the old group, after a barrier unless it is broken
//	dial         form the new group; the first member listens
//	agree        find the highest version; members without it receive it (receive)
//	compress     agree on the codec
//	sayFormed    tell the coordinator, which then releases rounds
//
// A step that fails on one member fails on all, because they are collective operations. The
// coordinator then forms another ring.

// leaveGroup closes the group. Data of its last operation may still be in flight, unless the ring
// has failed, so it waits at a barrier first. An error of the barrier has no consequence: the
// coordinator notices lost members itself.
func (w *ringWorker) leaveGroup(ctx context.Context) {
	if w.group == nil {
		return
	}
	if !w.broken {
		w.group.Barrier(ctx) // others may be gone already, which is valid here
	}
	w.group.Close()
	w.all.Ring(nil)
	w.group = nil
}

// join joins a ring.
//
// A ring that is not newer than the current one is ignored. A worker that is not a member becomes a
// rider: it leaves the group, drops its parameters, and connects to the member at ring.ParentAddr. Errors
// are those of dial, agree and the codec's agreement; mend interprets them.
func (w *ringWorker) join(ctx context.Context, ring wire.Ring) error {
	if ring.Generation <= w.ring.Generation {
		return nil
	}
	ring.Addr, ring.ParentAddr = process.WithHost(ring.Addr, w.job.Coordinator), process.WithHost(ring.ParentAddr, w.job.Coordinator)
	w.endStream() // a ring that is replaced in good order has just exchanged all parameters
	old := w.ring
	w.ring, w.generation = ring, ring.Generation
	if err := w.recallRing(ring); err != nil {
		return err
	}
	me := star.Worker(w.rank)
	w.relay.admit(ring, me)
	w.broken = w.broken || ring.Now
	w.part.forget()
	if w.riding != nil {
		w.riding.keep(func(r star.Worker) bool {
			return slices.ContainsFunc(ring.Riders, func(x wire.Rider) bool { return x.Worker == r && x.Parent == me })
		})
	}
	place := slices.Index(ring.Members, me)
	if place < 0 {
		w.leaveGroup(ctx)
		w.broken, w.version = false, -1 // the ring will continue without this worker
		if w.codec != nil && w.job.Compress != compress.Auto && w.parent.addr == "" {
			w.log.Info("sending gradients through a ring member as float32; --compress is ignored", "compress", w.job.Compress, "parent", ring.ParentAddr)
		}
		if ring.ParentAddr != w.parent.addr {
			w.parent.close()
			w.parent.addr = ring.ParentAddr
		}
		return nil
	}
	w.parent.close()
	w.parent.addr, w.riderBatch = "", riderBatch{}
	if w.group != nil && !ring.Now && !w.broken && slices.Equal(old.Members, ring.Members) {
		return w.sayFormed() // only riders have changed
	}
	w.leaveGroup(ctx)
	w.broken = false
	if err := w.dial(ctx, place); err != nil {
		return err
	}
	if err := w.agree(ctx, place); err != nil {
		return err
	}
	if err := w.compress(ctx); err != nil {
		return err
	}
	w.ended = time.Now()
	return w.sayFormed()
}

// sayFormed tells the coordinator that this worker is in its ring, with which version. An error: the
// coordinator is lost.
func (w *ringWorker) sayFormed() error {
	return session.Say(w.member, wire.Formed{Worker: star.Worker(w.rank), Generation: w.ring.Generation, Version: w.version}, nil)
}

// dial forms the group. Members learn of a ring at different moments and may still be computing for
// the one before, so dial retries until all have come.
//
// The first member listens, the others connect to it. Errors: a *allreduce.Error that names the
// member which could not be reached for ringReach; errRing after ringPatience; the cause of ctx when
// another ring replaces this one. Everything else is retried every 20 ms, because a member that has
// not come yet looks the same as one that refuses.
func (w *ringWorker) dial(ctx context.Context, place int) error {
	cfg := allreduce.Config{
		Rank: place, Size: len(w.ring.Members), Rendezvous: w.ring.Addr,
		Job: w.job.Name, Token: w.job.Token, Generation: uint32(w.ring.Generation),
		TLS: w.tls, Insecure: w.job.Insecure, Congestion: w.job.Congestion,
		Timeout: ringPatience, DialTimeout: ringPatience, ReachTimeout: ringReach, Log: w.log, HostID: w.job.HostID, Connections: w.job.Connections,
		Dial: process.Via(), Model: w.costs, Segment: w.job.Segment << 10, SendBuffer: w.job.Buffer << 10, ReceiveBuffer: w.job.Buffer << 10,
	}
	if host, _, err := gonet.SplitHostPort(w.meet.Addr().String()); err == nil && gonet.ParseIP(host).IsUnspecified() {
		cfg.Host = host
	}
	if w.job.Transport != job.Auto {
		cfg.Transport = w.job.Transport
	}
	if w.job.Checksum != job.Auto {
		cfg.Checksum = w.job.Checksum
	}
	if w.job.ZeroCopy != job.Auto {
		cfg.ZeroCopy = w.job.ZeroCopy
	}
	if err := cfg.Algorithm.UnmarshalText([]byte(w.job.Algorithm)); err != nil {
		return w.job.Invalid("allreduce-algorithm", err)
	}
	site := flightrecorder.Open(fmt.Sprintf("worker %d", w.rank), "all members of ring generation", "worker", "")
	defer site.Close()
	var others []int
	for _, m := range w.ring.Members {
		if int(m) != w.rank {
			others = append(others, int(m))
		}
	}
	site.Begin(w.ring.Generation, ringPatience, others...)
	end := time.Now().Add(ringPatience)
	// cut is when another member became unreachable.
	var cut time.Time
	for try := 0; ; try++ {
		if place == 0 {
			cfg.Listener = w.meet.open()
		}
		g, err := allreduce.Dial(ctx, cfg)
		switch {
		case err == nil:
			w.group, w.counted = g, allreduce.Traffic{}
			w.all.Ring(g)
			size := min(4*int64(len(w.params)), int64(w.job.Bucket*1e6))
			w.log.Info("ring formed", "generation", w.ring.Generation, "members", len(w.ring.Members), "algorithm", g.Algorithm(size), "bytes", size)
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Now().After(end):
			return fmt.Errorf("%w %d of workers %v could not be formed: %w", errRing, w.ring.Generation, w.ring.Members, err)
		}
		if peer, ok := errors.AsType[*allreduce.Error](err); ok && peer.Rank != allreduce.None {
			if cut.IsZero() {
				cut = time.Now()
			}
			if peer.Timeout() || time.Since(cut) > ringReach {
				return err
			}
		}
		level := slog.LevelDebug
		if cfg.Transport != "" && try == 0 { // the chosen transport may not be available
			level = slog.LevelWarn
		}
		w.log.Log(ctx, level, "could not form the ring; retrying", "err", err)
		if !process.Sleep(ctx, 20*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
}

// agree gives all members the highest version that one of them has.
//
// All find the same: of the members that have the highest version, the first sends it to the others.
// errRing: no member has parameters, or the members' version is not the one at which the coordinator
// starts the ring.
func (w *ringWorker) agree(ctx context.Context, place int) error {
	if w.exchanges {
		if err := w.catchUp(ctx); err != nil {
			return err
		}
	}
	v := []int64{w.version, -w.version}
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Max, v); err != nil {
		return err
	}
	highest, same := v[0], v[0] == -v[1]
	w.settle(highest)
	switch {
	case highest < 0:
		return fmt.Errorf("%w: none of workers %v has the parameters", errRing, w.ring.Members)
	case w.ring.From >= 0 && highest != w.ring.From:
		return fmt.Errorf("%w %d: cannot start at version %d, its members have %d", errRing, w.ring.Generation, w.ring.From, highest)
	case same && !w.begins(highest):
		return nil
	}
	holder := []int64{int64(len(w.ring.Members))}
	if w.version == highest {
		holder[0] = int64(place)
	}
	if err := allreduce.AllReduce(ctx, w.group, allreduce.Min, holder); err != nil {
		return err
	}
	return w.receive(ctx, place, int(holder[0]), highest)
}

// receive copies root's state of the highest version to all members.
//
// The state has the parameters, the optimizer's state, the samples applied, the tallies of the last
// versions (the coordinator may have missed them) and the metadata of the last release. Lengths from
// root are checked before memory is allocated for them.
func (w *ringWorker) receive(ctx context.Context, place, root int, highest int64) error {
	// Receive into new memory first: a member that has a whole version must not lose it when root is
	// lost in the middle.
	state, err := w.state(ctx)
	if err != nil {
		return err
	}
	if state.Slots, err = w.asMany(ctx, place, root, state.Slots); err != nil {
		return err
	}
	told := wire.PackTallies(w.last)
	// A member that was not in the last rounds has other outer steps, or none.
	outer := w.outward.OuterRule()
	counts := []int64{state.Steps, w.samples, int64(len(told)), int64(len(w.metadata)), int64(len(outer))}
	if err := allreduce.Broadcast(ctx, w.group, root, counts); err != nil {
		return err
	}
	if place != root {
		if counts[2] < 0 || counts[2] > maxTold {
			return fmt.Errorf("%w: worker %d sent an invalid length for its last tallies: %d", errRing, w.ring.Members[root], counts[2])
		}
		told = make([]int64, counts[2])
		if counts[3] < 0 || counts[3] > (transport.Limits{}).Payload(wire.KindRelease) {
			return fmt.Errorf("%w: worker %d sent an invalid length for its metadata: %d", errRing, w.ring.Members[root], counts[3])
		}
	}
	if err := allreduce.Broadcast(ctx, w.group, root, told); err != nil {
		return err
	}
	metadata := packBytes(w.metadata)
	if counts[3] > 0 { // only jobs with several coordinators
		if place != root {
			metadata = make([]int64, (counts[3]+7)/8)
		}
		if err := allreduce.Broadcast(ctx, w.group, root, metadata); err != nil {
			return err
		}
	}
	if state.Slots, err = w.outerSlots(ctx, place, root, state.Slots, outer, counts[4]); err != nil {
		return err
	}
	receive := func(own []float32) ([]float32, error) {
		v := own
		if place != root {
			v = make([]float32, len(own))
		}
		return v, allreduce.Broadcast(ctx, w.group, root, v)
	}
	params, err := receive(w.params)
	if err != nil {
		return err
	}
	got := optim.State{Name: state.Name, Steps: counts[0]}
	for _, slot := range state.Slots {
		v, err := receive(slot.Data)
		if err != nil {
			return err
		}
		got.Slots = append(got.Slots, optim.Slot{Name: slot.Name, Data: v})
	}
	if place == root || w.version == highest && !w.begins(highest) {
		return nil
	}
	if err := w.setState(ctx, got); err != nil {
		return err
	}
	w.relay.change(highest, func() { copy(w.params, params) })
	w.version, w.samples, w.last = highest, counts[1], wire.UnpackTallies(told, star.Worker(w.rank))
	if counts[3] > 0 {
		w.metadata = engine.NewerMetadata(w.metadata, unpackBytes(metadata)[:counts[3]])
	}
	for _, t := range w.last { // the member that made these versions may not have reported them
		if err := session.Say(w.member, t, nil); err != nil {
			return err
		}
	}
	w.log.Info("received the parameters", "version", highest, "from", w.ring.Members[root])
	return nil
}

// maxTold bounds the numbers in packed tallies: two tallies with the maximum of riders.
const maxTold = 2 * (6 + (2*3+1)*wire.MaxWorkers)

// packBytes packs bytes into numbers, padded with zeros.
func packBytes(b []byte) []int64 {
	v := make([]int64, (len(b)+7)/8)
	whole := append(slices.Clone(b), make([]byte, 8*len(v)-len(b))...)
	for i := range v {
		v[i] = int64(binary.LittleEndian.Uint64(whole[8*i:]))
	}
	return v
}

// unpackBytes is the inverse of packBytes.
func unpackBytes(v []int64) (b []byte) {
	for _, x := range v {
		b = binary.LittleEndian.AppendUint64(b, uint64(x))
	}
	return b
}
