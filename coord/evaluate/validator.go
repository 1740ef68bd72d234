package evaluate

import "star/transport/wire"

// Validator is the member that computes validation gradients, against which updates are checked. Its gradient is asked
// for, held by some shards, and in use when all shards hold it; the one before stays in use until then. Workers begin
// when the first one is in use. The zero value is a job without a validator.
//
//	Join ──► Ask ──► Stored by every shard: in use ──► Received (enough gradients) ──► Ask
//	  ▲                                                                                  │
//	  └────────────────────────────── Lost: updates are not checked ◄────────────────────┘
type Validator struct {
	on     bool
	every  int  // gradients between two of the validator's
	joined bool // it is connected
	begun  bool // the workers have begun
	lost   bool // it has left, and no gradient of another one is in use

	asked    bool
	step     int64  // of the gradient that is asked for, or the next one
	stored   []bool // by shard
	left     int    // shards that do not hold it
	basis    int64  // version of the parameters of that gradient
	version  int64  // of the gradient in use
	received int    // gradients since it was asked for
}

// NewValidator is the validator of a job. A gradient is asked for after every gradients of workers; 0 means 1.
func NewValidator(every int) Validator { return Validator{on: true, every: max(1, every)} }

// On reports whether the job has a validator.
func (v *Validator) On() bool { return v.on }

// Ready reports whether the job may begin. A job without a validator does not wait for one.
func (v *Validator) Ready() bool { return !v.on || v.joined }

// Begun reports whether the workers have begun, or need not wait for a first gradient.
func (v *Validator) Begun() bool { return !v.on || v.begun }

// Joined reports whether the validator is connected.
func (v *Validator) Joined() bool { return v.joined }

// Judges reports whether updates are checked.
func (v *Validator) Judges() bool { return v.on && !v.lost }

// Step is that of the gradient that is asked for, or the next one.
func (v *Validator) Step() int64 { return v.step }

// Version is that of the parameters of the gradient in use.
func (v *Validator) Version() int64 { return v.version }

// Join records that it has connected.
func (v *Validator) Join() { v.joined = true }

// Ask asks for a gradient of a version, which all shards must store.
func (v *Validator) Ask(version int64, shards int) {
	v.asked, v.received, v.basis = true, 0, version
	v.stored, v.left = make([]bool, shards), shards
}

// Received counts gradients of workers, and reports whether the next one of the validator is asked for now.
func (v *Validator) Received(gradients int) bool {
	v.received += gradients
	return v.joined && !v.asked && v.received >= v.every
}

// Stored records that a shard holds the gradient of a step. used: all hold it, and it is in use from now on. first:
// workers begin. A gradient of an earlier validator, and a repeated report, are ignored.
func (v *Validator) Stored(m wire.Stored) (used, first bool) {
	if !v.asked || m.Step != v.step || m.Shard < 0 || m.Shard >= len(v.stored) || v.stored[m.Shard] {
		return false, false
	}
	v.stored[m.Shard] = true
	if v.left--; v.left > 0 {
		return false, false
	}
	first = !v.begun
	v.asked, v.lost, v.begun, v.version = false, false, true, v.basis
	v.step++
	return true, first
}

// Lost continues without it. Shards drop what it has pushed when another one pushes, and the gradients of that one
// have other numbers. training: the job has begun, and continues; otherwise another one may join before. first:
// workers begin.
func (v *Validator) Lost(training bool) (first bool) {
	v.joined, v.asked = false, false
	if !training {
		return false
	}
	v.step++
	first = !v.begun
	v.lost, v.begun = true, true
	return first
}
