package copies

// Loss is the loss of a server, and the job at that moment.
type Loss struct {
	Rank                     int
	Begun, Trained, Assigned bool // the training begins; a coordinator before this one trained; shards are assigned
	Replaceable, Candidate   bool // other processes may coordinate; the server is one of them
	HasShards                bool
	Spared                   bool // other servers have the parameters of its shards, before the training begins
}

// Consequence is what follows from the loss of a server.
type Consequence int

const (
	Fatal    Consequence = iota // the job ends: its shards are lost
	Free                        // its rank is free for another one
	Nothing                     // it might only have coordinated
	Idle                        // it was a spare one
	Continue                    // other copies are enough
	Begin                       // they are enough to begin with
)

// Lost decides about the loss of a server.
func (k *Copies) Lost(l Loss) Consequence {
	switch {
	case !l.Begun && !l.Assigned:
		return Free
	case l.Replaceable && !l.HasShards && (!k.On() || !l.Begun || l.Candidate):
		return Nothing
	case k.On() && (l.Begun || l.Trained && l.Assigned) && (l.Rank != 0 || l.Replaceable):
		return Continue
	case !l.Begun && l.Spared:
		return Begin
	case l.Begun && !l.HasShards && l.Rank != 0:
		return Idle
	}
	return Fatal
}
