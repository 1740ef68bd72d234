package compress

import (
	"fmt"
	"math"
	"strings"
)

// Entry is a codec that can be asked for by name. Each is declared in the codec's own file and listed in [Entries]:
// shards, rings, checks of settings and completion know codecs by nothing else.
type Entry struct {
	Name string // without its argument
	Arg  string // an example of the argument, written after =; empty: it takes none
	Loss Loss

	missing string // what a name without its argument lacks: rank, amount

	// make creates the codec for a slice, with random numbers from seed. arg is the argument in the name.
	make func(name, arg string, s Slice, seed uint64) (Codec, error)

	// average makes what averages the pieces of a ring, of residual e, in the place of messages that are added up; nil:
	// messages are. arg was accepted by make.
	average func(arg string, e []float32, ms []Matrix, seed uint64) (*Averager, error)
}

// Entries are all codecs, in order of increasing loss.
var Entries = []Entry{none, fp16, bf16, int8Nearest, int8Stochastic, int2, topK, powerSGD}

// Loss is how far the sum of the sent values can be from the sum of the given values. The rest stays in [Feedback].
type Loss uint8

const (
	Nothing Loss = iota
	Half         // the rounding of half precision: norms are, but for that, those of the gradients
	Byte         // the rounding of 8 bits
	LeftOut      // values come iterations later
)

// Slice is the part [From, To) of a flat vector, in which Tensors lie, with offsets in the whole vector. Codecs that
// need no shapes serve any slice, also the zero one.
type Slice struct {
	From, To int
	Tensors  []Tensor
}

// Spec is a codec as a setting names it: NAME or NAME=ARG.
type Spec struct {
	Entry
	name, arg string
}

// ParseSpec finds the codec of a name, without checking its argument. Errors list the names.
func ParseSpec(name string) (Spec, error) {
	kind, arg, has := strings.Cut(name, "=")
	for _, e := range Entries {
		if e.Name != kind || has && e.Arg == "" {
			continue
		}
		if !has && e.Arg != "" {
			return Spec{}, fmt.Errorf("compress: codec %q has no %s; write %s", name, e.missing, e.Example())
		}
		return Spec{e, name, arg}, nil
	}
	names := Names()
	return Spec{}, fmt.Errorf("compress: unknown codec %q; use one of %s or %s", name, strings.Join(names[:len(names)-1], ", "), names[len(names)-1])
}

// Example is a name that [ParseSpec] or [New] takes.
func (e Entry) Example() string {
	if e.Arg == "" {
		return e.Name
	}
	return e.Name + "=" + e.Arg
}

// Names lists an example of each codec, in order of increasing loss.
func Names() (names []string) {
	for _, e := range Entries {
		names = append(names, e.Example())
	}
	return names
}

// New makes the codec of a slice. seed is for the random numbers of int8-stochastic and the first iteration of
// powersgd: senders that should be independent need different ones. An error describes an invalid name, or a property
// of the slice that the codec needs.
func (s Spec) New(of Slice, seed uint64) (Codec, error) { return s.make(s.name, s.arg, of, seed) }

// Averages reports whether members of a ring average by steps of the codec's own ([Averager]) and not by adding up
// messages.
func (s Spec) Averages() bool { return s.average != nil }

// Averager creates one for a piece of the vector with the given matrices; it keeps the rest in e. It needs
// [Spec.Averages]. All members need the same seed.
func (s Spec) Averager(e []float32, ms []Matrix, seed uint64) (*Averager, error) {
	return s.average(s.arg, e, ms, seed)
}

// New makes the codec of a slice from its name:
//
//	none             float32 as it is
//	fp16, bf16       half precision
//	int8             8 bits and a scale for each block, rounded to nearest
//	int8-stochastic  the same, rounded up or down at random, right on average
//	int2             2 bits and a scale for each block
//	topk=0.01        the largest 1 % by magnitude
//	topk=1000        the largest 1000
//	powersgd=4       matrices as products of rank 4
//
// See [Spec.New].
func New(name string, of Slice, seed uint64) (Codec, error) {
	s, err := ParseSpec(name)
	if err != nil {
		return nil, err
	}
	return s.New(of, seed)
}

// Auto is the name of no codec: in a setting it leaves the choice to [Choose].
const Auto = "auto"

// Check returns an error for an invalid setting: it accepts a name that [New] knows, for any slice, or [Auto].
func Check(name string) error {
	if name == Auto {
		return nil
	}
	s, err := ParseSpec(name)
	if err != nil {
		return fmt.Errorf("%w, or %s", err, Auto)
	}
	// Any tensor will do: whether the job's model has some is seen with its shapes.
	if _, err = s.New(Slice{To: 1, Tensors: []Tensor{{Shape: []int{1, 1}}}}, 0); err != nil {
		return fmt.Errorf("%w, or %s", err, Auto)
	}
	return nil
}

// MaxLen is the greatest length of a vector: indices are sent as uint32.
const MaxLen = math.MaxInt32
