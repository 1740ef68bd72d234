package runlog

// Result is what a run came to: the JSON of `star run --json` and the last line of
// the run log. Seconds, bytes and samples.
type Result struct {
	Arch            string    `json:"arch"`
	Mode            string    `json:"mode"`
	Baseline        string    `json:"baseline,omitempty"`
	Workers         int       `json:"workers"`
	Shards          int       `json:"shards"`
	Model           string    `json:"model"`
	Dataset         string    `json:"dataset"`
	Seed            uint64    `json:"seed"`
	Steps           int64     `json:"steps"`                 // gradients that were used
	Updates         int64     `json:"updates" check:"min=0"` // versions made
	Samples         int64     `json:"samples" check:"min=0"` // of the gradients that were used
	Wasted          int64     `json:"wasted_samples"`
	Aside           int64     `json:"put_aside_samples,omitempty"` // of these, what killed two workers and is not handed out again
	TrainLoss       Number    `json:"train_loss"`
	TestLoss        Number    `json:"test_loss"`
	TestAccuracy    float64   `json:"test_accuracy"`
	Evaluated       bool      `json:"evaluated"` // the parameters at the end were; else the test fields are of an earlier evaluation, or zero
	Wall            Seconds   `json:"wall_s"`    // of the training, without joining and final evaluation
	SamplesPerS     float64   `json:"samples_per_s"`
	Staleness       Staleness `json:"staleness"`
	Switches        int       `json:"switches"`
	BytesSent       int64     `json:"bytes_sent"` // gradients, parameters and buffers, both directions
	RunLog          string    `json:"run_log"`
	Checkpoint      string    `json:"checkpoint"`
	CheckpointError string    `json:"checkpoint_error,omitempty"`
	Ended           string    `json:"ended,omitempty"` // what ended the job before its last sample
	Notes           []string  `json:"notes,omitempty"` // what the numbers do not say: for people
	Error           string    `json:"error,omitempty"`
}

// Summary is the last line, with the fields of `star run --json`. Without it the coordinator was killed.
type Summary struct{ Result }

// Staleness is the distribution of updates between reading parameters and the
// update that used the gradient. Histogram[s] counts gradients of staleness s.
type Staleness struct {
	Mean      float64         `json:"mean"`
	Max       int64           `json:"max"`
	Histogram map[int64]int64 `json:"histogram"`
}
