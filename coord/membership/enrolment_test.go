package membership

import (
	"encoding/json"
	"strings"
	"testing"

	"star/coord/session"
	"star/transport/wire"
)

func TestParseEnrolment(t *testing.T) {
	h := wire.Hello{Params: 10, Buffers: 3}
	for _, c := range []struct{ name, text, want string }{
		{"nothing has a name", `{"data":"d","samples":5}`, ""},
		{"all of it", `{"layout":[{"name":"a","shape":[2,3],"offset":0},{"name":"none","shape":[0],"offset":6},{"name":"b","shape":[4],"offset":6}],"buffers":[{"name":"m","shape":[3],"offset":0}],"data":"d","samples":5}`, ""},
		{"one number", `{"layout":[{"name":"a","shape":[9],"offset":0},{"name":"b","shape":[],"offset":9}]}`, ""},
		{"no JSON", `{"layout":`, "not valid JSON"},
		{"a wrong type", `{"layout":{"a":1}}`, "not valid JSON"},
		{"negative samples", `{"samples":-1}`, "-1 samples"},
		{"negative tests", `{"samples":1,"tests":-2}`, "-2 tests"},
		{"a gap", `{"layout":[{"name":"a","shape":[5],"offset":0},{"name":"b","shape":[4],"offset":6}]}`, `"b" of 4 elements is at 6, expected it at 5`},
		{"an overlap", `{"layout":[{"name":"a","shape":[5],"offset":0},{"name":"b","shape":[6],"offset":4}]}`, "expected it at 5"},
		{"too short", `{"layout":[{"name":"a","shape":[5],"offset":0}]}`, "10 parameters: its tensors have 5"},
		{"too long", `{"layout":[{"name":"a","shape":[11],"offset":0}]}`, "of 11 elements"},
		{"a negative shape", `{"layout":[{"name":"a","shape":[-5,-2],"offset":0}]}`, "cannot have the shape [-5 -2]"},
		{"more than there are numbers", `{"layout":[{"name":"a","shape":[4294967296,4294967296],"offset":0}]}`, "cannot have the shape"},
		{"more, hidden by a nought", `{"layout":[{"name":"a","shape":[4294967296,4294967296,0],"offset":0}]}`, "cannot have the shape"},
		{"buffers", `{"buffers":[{"name":"m","shape":[2],"offset":0}]}`, "3 buffers: its tensors have 2"},
	} {
		_, err := ParseEnrolment(h, []byte(c.text))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

// An enrolment is rejected or means the same to every process that receives it.
func FuzzEnrolment(f *testing.F) {
	f.Add(int64(10), int64(3), []byte(`{"layout":[{"name":"a","shape":[2,5],"offset":0}],"buffers":[{"name":"m","shape":[3],"offset":0}],"data":"d","samples":5,"tests":1,"rule":"r"}`))
	f.Add(int64(0), int64(0), []byte(`{"samples":-1}`))
	f.Add(int64(1<<62), int64(-1), []byte(`{"layout":[{"name":"a","shape":[4294967296,1073741824],"offset":0}]}`))
	f.Add(int64(7), int64(0), []byte(`{"layout":[{"name":"a","shape":[0,9223372036854775807],"offset":0},{"shape":[7],"offset":0}]}`))
	f.Fuzz(func(t *testing.T, params, buffers int64, text []byte) {
		h := wire.Hello{Params: params, Buffers: buffers}
		e, err := ParseEnrolment(h, text)
		if err != nil {
			return
		}
		for _, part := range []struct {
			tensors []session.Tensor
			n       int64
		}{{e.Layout, params}, {e.Buffers, buffers}} {
			at := int64(0)
			for _, x := range part.tensors {
				size := int64(1)
				for _, k := range x.Shape {
					size *= int64(k)
				}
				if int64(x.Offset) != at || size < 0 {
					t.Fatalf("tensor %+v is taken, at %d", x, at)
				}
				at += size
			}
			if len(part.tensors) > 0 && at != part.n {
				t.Fatalf("%d elements are taken for %d", at, part.n)
			}
		}
		once, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		again, err := ParseEnrolment(h, once)
		if err != nil {
			t.Fatalf("%s is taken, but passed on as %s: %v", text, once, err)
		}
		twice, err := json.Marshal(again)
		if err != nil || string(once) != string(twice) {
			t.Fatalf("%s, passed on as %s, then as %s, %v", text, once, twice, err)
		}
	})
}
