package trace

import (
	"bufio"
	"reflect"
	"strings"
	"testing"
)

// pickled is one value as Python 3.11 pickles it in each protocol: {"version": "2.10", "n": [0, 255, 256, -1, 70000,
// 1795728832089112934, True, False, None, 1.5], "t": ((), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), "s": "ü\n", "again":
// [x, x, {3: x}]} with x = ["same"].
var pickled = []string{
	// protocol 0
	"(dp0\nVversion\np1\nV2.10\np2\nsVn\np3\n(lp4\nI0\naI255\naI256\naI-1\naI70000\naL1795728832089112934L\naI01\naI00\naNaF1.5\nasVt\np5\n((t(I1\ntp6\n(I1\nI2\ntp7\n(I1\nI2\nI3\ntp8\n(I1\nI2\nI3\nI4\ntp9\ntp10\nsVs\np11\nV\xfc\\u000a\np12\nsVagain\np13\n(lp14\n(lp15\nVsame\np16\naag15\na(dp17\nI3\ng15\nsas.",
	// protocol 1
	"}q\x00(X\x07\x00\x00\x00versionq\x01X\x04\x00\x00\x002.10q\x02X\x01\x00\x00\x00nq\x03]q\x04(K\x00K\xffM\x00\x01J\xff\xff\xff\xffJp\x11\x01\x00L1795728832089112934L\nI01\nI00\nNG?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00tq\x05()(K\x01tq\x06(K\x01K\x02tq\x07(K\x01K\x02K\x03tq\x08(K\x01K\x02K\x03K\x04tq\x09tq\nX\x01\x00\x00\x00sq\x0bX\x03\x00\x00\x00\xc3\xbc\nq\x0cX\x05\x00\x00\x00againq\x0d]q\x0e(]q\x0fX\x04\x00\x00\x00sameq\x10ah\x0f}q\x11K\x03h\x0fseu.",
	// protocol 2
	"\x80\x02}q\x00(X\x07\x00\x00\x00versionq\x01X\x04\x00\x00\x002.10q\x02X\x01\x00\x00\x00nq\x03]q\x04(K\x00K\xffM\x00\x01J\xff\xff\xff\xffJp\x11\x01\x00\x8a\x08fA\x99\xcd\xdb\xb5\xeb\x18\x88\x89NG?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00tq\x05()K\x01\x85q\x06K\x01K\x02\x86q\x07K\x01K\x02K\x03\x87q\x08(K\x01K\x02K\x03K\x04tq\x09tq\nX\x01\x00\x00\x00sq\x0bX\x03\x00\x00\x00\xc3\xbc\nq\x0cX\x05\x00\x00\x00againq\x0d]q\x0e(]q\x0fX\x04\x00\x00\x00sameq\x10ah\x0f}q\x11K\x03h\x0fseu.",
	// protocol 3
	"\x80\x03}q\x00(X\x07\x00\x00\x00versionq\x01X\x04\x00\x00\x002.10q\x02X\x01\x00\x00\x00nq\x03]q\x04(K\x00K\xffM\x00\x01J\xff\xff\xff\xffJp\x11\x01\x00\x8a\x08fA\x99\xcd\xdb\xb5\xeb\x18\x88\x89NG?\xf8\x00\x00\x00\x00\x00\x00eX\x01\x00\x00\x00tq\x05()K\x01\x85q\x06K\x01K\x02\x86q\x07K\x01K\x02K\x03\x87q\x08(K\x01K\x02K\x03K\x04tq\x09tq\nX\x01\x00\x00\x00sq\x0bX\x03\x00\x00\x00\xc3\xbc\nq\x0cX\x05\x00\x00\x00againq\x0d]q\x0e(]q\x0fX\x04\x00\x00\x00sameq\x10ah\x0f}q\x11K\x03h\x0fseu.",
	// protocol 4
	"\x80\x04\x95\x93\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x07version\x94\x8c\x042.10\x94\x8c\x01n\x94]\x94(K\x00K\xffM\x00\x01J\xff\xff\xff\xffJp\x11\x01\x00\x8a\x08fA\x99\xcd\xdb\xb5\xeb\x18\x88\x89NG?\xf8\x00\x00\x00\x00\x00\x00e\x8c\x01t\x94()K\x01\x85\x94K\x01K\x02\x86\x94K\x01K\x02K\x03\x87\x94(K\x01K\x02K\x03K\x04t\x94t\x94\x8c\x01s\x94\x8c\x03\xc3\xbc\n\x94\x8c\x05again\x94]\x94(]\x94\x8c\x04same\x94ah\x0f}\x94K\x03h\x0fseu.",
	// protocol 5
	"\x80\x05\x95\x93\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x07version\x94\x8c\x042.10\x94\x8c\x01n\x94]\x94(K\x00K\xffM\x00\x01J\xff\xff\xff\xffJp\x11\x01\x00\x8a\x08fA\x99\xcd\xdb\xb5\xeb\x18\x88\x89NG?\xf8\x00\x00\x00\x00\x00\x00e\x8c\x01t\x94()K\x01\x85\x94K\x01K\x02\x86\x94K\x01K\x02K\x03\x87\x94(K\x01K\x02K\x03K\x04t\x94t\x94\x8c\x01s\x94\x8c\x03\xc3\xbc\n\x94\x8c\x05again\x94]\x94(]\x94\x8c\x04same\x94ah\x0f}\x94K\x03h\x0fseu.",
}

func unpickleText(text string) (any, error) {
	return unpickle(bufio.NewReader(strings.NewReader(text)))
}

func TestUnpickle(t *testing.T) {
	one, two, three, four := int64(1), int64(2), int64(3), int64(4)
	for protocol, text := range pickled {
		v, err := unpickleText(text)
		if err != nil {
			t.Errorf("protocol %d: %v", protocol, err)
			continue
		}
		d := v.(dict)
		again, _ := items(d["again"])
		delete(d, "again")
		want := dict{"version": "2.10", "s": "ü\n", "n": &list{[]any{int64(0), int64(255), int64(256), int64(-1), int64(70000), int64(1795728832089112934), true, false, nil, 1.5}},
			"t": tuple{tuple(nil), tuple{one}, tuple{one, two}, tuple{one, two, three}, tuple{one, two, three, four}}}
		if got, _ := d["t"].(tuple); len(got) > 0 && len(got[0].(tuple)) == 0 {
			got[0] = tuple(nil)
		}
		if !reflect.DeepEqual(v, want) {
			t.Errorf("protocol %d: %#v", protocol, v)
		}
		x := again[0].(*list)
		if again[1] != x || again[2].(dict)["3"] != x || x.items[0] != "same" {
			t.Errorf("protocol %d: what is there once is there several times: %#v", protocol, again)
		}
		for n := range len(text) {
			if _, err := unpickleText(text[:n]); err == nil {
				t.Errorf("protocol %d: %d bytes of %d are taken for all", protocol, n, len(text))
			}
		}
	}
}

// Nothing but plain data is made of a pickle, and what else it asks for is named.
func TestUnpickleRefuses(t *testing.T) {
	for _, x := range []struct{ text, want string }{
		{"(lp0\nI1\nacposix\nsystem\np1\n(Vtouch ran\np2\ntp3\nRp4\na.", `it would have "posix.system" of Python called (GLOBAL)`},
		{"\x80\x02]q\x00(K\x01cposix\nsystem\nq\x01X\x09\x00\x00\x00touch ranq\x02\x85q\x03Rq\x04e.", `it would have "posix.system" of Python called (GLOBAL)`},
		{"\x80\x04\x95*\x00\x00\x00\x00\x00\x00\x00]\x94(K\x01\x8c\x05posix\x94\x8c\x06system\x94\x93\x94\x8c\x09touch ran\x94\x85\x94R\x94e.", `it would have "posix.system" of Python called (STACK_GLOBAL)`},
		{"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01ccollections\nOrderedDict\nq\x02)Rq\x03h\x01K\x01ss.", `it would have "collections.OrderedDict" of Python called (GLOBAL)`},
		{"(S'touch ran'\nios\nsystem\n.", `it has the instruction STRING`},
		{"(ios\nsystem\n.", `it would have "os.system" of Python called (INST)`},
		{"\x80\x04\x95\x09\x00\x00\x00\x00\x00\x00\x00\x8f\x94(K\x01K\x02\x90.", `it has the instruction EMPTY_SET`},
		{"\x80\x04\x95\x05\x00\x00\x00\x00\x00\x00\x00C\x01x\x94.", `it has the instruction SHORT_BINBYTES`},
		{"\x80\x04K\x01R.", `byte 4: it has the instruction REDUCE`},
		{"\x80\x04\x82\x01.", `it has the instruction EXT1`},
		{"\x80\x04Pid\n.", `it has the instruction PERSID`},
		{"\x80\x06N.", `protocol 6 of pickles`},
		{"\x80\x02h\x05.", `it takes value 5 of those it kept, and did not keep it`},
		{"\x80\x02.", `it takes a value from an empty stack`},
		{"\x80\x02(.", `it takes a value from an empty stack`},
		{"\x80\x02a.", `it takes a value from an empty stack`},
		{"\x80\x02t.", `it takes values up to a mark that is missing`},
		{"\x80\x02NN.", `it ends with more than one value`},
		{"\x80\x02}(Nu.", `a key of a dict has no value`},
		{"\x80\x02}(NNu.", `a key of a dict is a <nil>`},
		{"\x80\x02}Na.", `it puts items into a trace.dict`},
		{"\x80\x02\x8a\x09000000000.", `a number of 9 bytes, at most 8`},
		{"\x80\x02X\xff\xff\xff\x7fa", `a text of 2147483647 bytes`},
		{"\x80\x02X\xff\xff\x00\x00a", `it is cut off`},
		{"\x80\x02\xff.", `0xff is no instruction of a pickle`},
	} {
		v, err := unpickleText(x.text)
		if err == nil || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%q: %v, %v, want %q", x.text, v, err, x.want)
		}
	}
}
