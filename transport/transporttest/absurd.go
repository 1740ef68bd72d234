package transporttest

import (
	"fmt"
	"iter"
	"math"
	"reflect"
	"slices"
	"strings"

	"star/transport/wire"
)

// Messages has each message of the protocol once, empty. A test compares it with the list of kinds.
var Messages = []wire.Message{
	wire.Hello{}, wire.Welcome{}, wire.Reject{}, wire.Assign{}, wire.Ready{}, wire.Joined{}, wire.Arrive{},
	wire.Stored{}, wire.Fire{}, wire.Norm{}, wire.Apply{}, wire.Release{}, wire.Push{}, wire.Params{},
	wire.Pull{}, wire.Init{}, wire.Buffers{}, wire.EvalResult{}, wire.Save{}, wire.Saved{}, wire.Leave{},
	wire.Control{}, wire.Reply{}, wire.Ping{}, wire.Pong{}, wire.Ring{}, wire.Formed{}, wire.Tally{},
	wire.Fault{}, wire.Branch{}, wire.Bundle{}, wire.Detach{}, wire.Want{}, wire.Compression{},
	wire.Enlist{}, wire.Usage{}, wire.Ask{}, wire.Grant{}, wire.Order{}, wire.Obeyed{}, wire.Yield{},
	wire.Adopt{}, wire.Hand{}, wire.Moved{}, wire.State{}, wire.Slot{}, wire.Route{}, wire.Cancel{},
	wire.Computed{}, wire.Close{}, wire.Poison{}, wire.Ballot{}, wire.Standing{}, wire.Elsewhere{},
	wire.View{}, wire.Held{}, wire.Turn{}, wire.Ahead{}, wire.Halt{},
}

// Of is the empty message of a kind.
func Of(k wire.Kind) wire.Message {
	for _, m := range Messages {
		if m.Kind() == k {
			return m
		}
	}
	panic(fmt.Sprintf("transporttest: %v is not among Messages", k))
}

// Fill sets fields of a message by their names, also inside structs and in lists, which get one element. It skips a
// value that a field of that name cannot hold.
func Fill(m wire.Message, fields map[string]any) wire.Message {
	v := reflect.New(reflect.TypeOf(m)).Elem()
	v.Set(reflect.ValueOf(m))
	fill(v, fields)
	return v.Interface().(wire.Message)
}

func fill(v reflect.Value, fields map[string]any) {
	for i := range v.NumField() {
		f := v.Field(i)
		if x, ok := fields[v.Type().Field(i).Name]; ok {
			if x := reflect.ValueOf(x); x.CanConvert(f.Type()) && (x.Kind() == reflect.String) == (f.Kind() == reflect.String) {
				f.Set(x.Convert(f.Type()))
				continue
			}
		}
		switch {
		case f.Kind() == reflect.Struct:
			fill(f, fields)
		case f.Kind() == reflect.Slice && f.Type().Elem().Kind() == reflect.Struct:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
			fill(f.Index(0), fields)
		}
	}
}

// Absurd yields copies of a message in which one field has an implausible value: the smallest or largest value of its
// type, zero, a finite number far from any real one, or a number that is not finite. The name has the field and the
// value.
func Absurd(m wire.Message) iter.Seq2[string, wire.Message] {
	return func(yield func(string, wire.Message) bool) {
		v := reflect.New(reflect.TypeOf(m)).Elem()
		v.Set(reflect.ValueOf(m))
		absurd(v, "", func(name string) bool { return yield(m.Kind().String()+name, v.Interface().(wire.Message)) })
	}
}

var (
	ints   = []int64{0, -1, 1, 70, 4095, 1<<31 - 1, 1 << 62, math.MaxInt64, math.MinInt64}
	floats = []float64{0, -1, 1e308, -1e308, 1e38, math.MaxFloat64, math.SmallestNonzeroFloat64, math.NaN(), math.Inf(1), math.Inf(-1)}
	texts  = []string{"", "nonsense", "\xff", strings.Repeat("x", 300)}
)

// Extreme reports whether a name from Absurd has a value that no correct peer sends: an end of its type's range, or a
// number that is not finite.
func Extreme(name string) bool {
	_, is, _ := strings.Cut(name, "=")
	return slices.Contains(extremes, is)
}

var extremes = []string{
	fmt.Sprint(math.MinInt64), fmt.Sprint(1 << 62), fmt.Sprint(math.MaxInt64), "1e+308", "-1e+308", fmt.Sprint(math.MaxFloat64), "NaN", "+Inf", "-Inf",
}

// absurd changes v, calls next for each change, and changes it back. It reports false when next does.
func absurd(v reflect.Value, name string, next func(string) bool) bool {
	old := reflect.New(v.Type()).Elem()
	old.Set(v)
	defer v.Set(old)
	try := func(what string, set func()) bool {
		set()
		defer v.Set(old)
		return next(name + "=" + what)
	}
	switch v.Kind() {
	case reflect.Bool:
		return try(fmt.Sprint(!v.Bool()), func() { v.SetBool(!old.Bool()) })
	case reflect.Int, reflect.Int64, reflect.Int32:
		for _, x := range ints {
			if !v.OverflowInt(x) && !try(fmt.Sprint(x), func() { v.SetInt(x) }) {
				return false
			}
		}
	case reflect.Uint8, reflect.Uint64:
		for _, x := range []uint64{0, 1, 255, math.MaxUint64} {
			if !v.OverflowUint(x) && !try(fmt.Sprint(x), func() { v.SetUint(x) }) {
				return false
			}
		}
	case reflect.Float32, reflect.Float64:
		for _, x := range floats {
			if !try(fmt.Sprint(x), func() { v.SetFloat(x) }) {
				return false
			}
		}
	case reflect.String:
		for _, x := range texts {
			if what := fmt.Sprintf("%.20q", x); !try(what, func() { v.SetString(x) }) {
				return false
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if !absurd(v.Field(i), name+"."+v.Type().Field(i).Name, next) {
				return false
			}
		}
	case reflect.Array:
		return absurd(v.Index(0), name+"[0]", next)
	case reflect.Slice:
		one := reflect.MakeSlice(v.Type(), 1, 1)
		if v.Len() > 0 {
			one.Index(0).Set(v.Index(0))
		}
		if v.Len() > 0 && !try("[]", func() { v.Set(reflect.Zero(v.Type())) }) {
			return false
		}
		if v.Len() == 0 && !try("[0]", func() { v.Set(one) }) {
			return false
		}
		twice := reflect.AppendSlice(one, one)
		if !try("twice", func() { v.Set(twice) }) {
			return false
		}
		own := reflect.MakeSlice(v.Type(), 1, 1)
		own.Index(0).Set(one.Index(0))
		return absurd(own.Index(0), name+"[0]", func(name string) bool {
			v.Set(reflect.AppendSlice(reflect.Zero(v.Type()), own)) // a receiver that keeps the message keeps this list
			return next(name)
		})
	default:
		panic(fmt.Sprintf("transporttest: a field of kind %v: say what is absurd for it", v.Kind()))
	}
	return true
}
