package runlog

// A line's type of each entry. Its order is that of docs/files.md.
var kinds = []Entry{
	Start{}, Join{}, Train{}, Record{}, Sampled{}, Fire{}, Noise{}, Poison{}, Compression{}, Plan{}, Unheeded{}, Heard{}, Late{}, Admission{}, Verdict{}, Hang{}, Slowdown{}, Gain{}, Set{}, Predictor{},
	Leave{}, Aside{}, Eval{}, Checkpoint{}, Memory{}, Pace{}, Move{}, Replica{}, Shift{}, Validation{}, Judgement{}, Short{}, Enough{}, Term{}, Recall{}, Gap{}, Stop{}, Summary{},
}

func (Start) kind() string       { return "start" }
func (Join) kind() string        { return "join" }
func (Train) kind() string       { return "train" }
func (Record) kind() string      { return "record" }
func (Sampled) kind() string     { return "sampled" }
func (Fire) kind() string        { return "fire" }
func (Noise) kind() string       { return "noise" }
func (Poison) kind() string      { return "poison" }
func (Compression) kind() string { return "compression" }
func (Plan) kind() string        { return "plan" }
func (Unheeded) kind() string    { return "unheeded" }
func (Heard) kind() string       { return "heard" }
func (Late) kind() string        { return "late" }
func (Admission) kind() string   { return "admission" }
func (Verdict) kind() string     { return "verdict" }
func (Hang) kind() string        { return "hang" }
func (Slowdown) kind() string    { return "slowdown" }
func (Gain) kind() string        { return "gain" }
func (Set) kind() string         { return "set" }
func (Predictor) kind() string   { return "predictor" }
func (Leave) kind() string       { return "leave" }
func (Aside) kind() string       { return "aside" }
func (Eval) kind() string        { return "eval" }
func (Checkpoint) kind() string  { return "checkpoint" }
func (Memory) kind() string      { return "memory" }
func (Pace) kind() string        { return "pace" }
func (Move) kind() string        { return "move" }
func (Replica) kind() string     { return "replica" }
func (Shift) kind() string       { return "shift" }
func (Validation) kind() string  { return "validation" }
func (Judgement) kind() string   { return "judgement" }
func (Short) kind() string       { return "short" }
func (Enough) kind() string      { return "enough" }
func (Term) kind() string        { return "term" }
func (Recall) kind() string      { return "recall" }
func (Gap) kind() string         { return "gap" }
func (Stop) kind() string        { return "stop" }
func (Summary) kind() string     { return "summary" }
