package trace

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
)

// A pickle is a program for a machine with a stack. That of Python can import any module and call what it finds
// there; this one knows the instructions that build plain data, and refuses the others. The instructions and their
// arguments are those of Python's Lib/pickletools.py, protocols 0 to 5.

// list and dict are mutable while a pickle is read, and may be in several places.
type list struct{ items []any }

// dict has its keys as text: those of plain data are texts and numbers.
type dict map[string]any

// tuple cannot be changed, and so cannot contain itself.
type tuple []any

// mark is on the stack where the items of a list, tuple or dict begin.
type mark struct{}

const (
	maxPickled = 32 << 20 // instructions
	maxText    = 16 << 20 // bytes of one text
)

// unpickler is the machine.
type unpickler struct {
	r     *bufio.Reader
	at    int64 // bytes read
	stack []any
	memo  map[uint64]any
}

// refused are the instructions that make anything else than plain data, by their names in pickletools.
var refused = map[byte]string{
	'c': "GLOBAL", 'i': "INST", 'o': "OBJ", 'R': "REDUCE", 'b': "BUILD", 'P': "PERSID", 'Q': "BINPERSID",
	0x81: "NEWOBJ", 0x82: "EXT1", 0x83: "EXT2", 0x84: "EXT4", 0x92: "NEWOBJ_EX", 0x93: "STACK_GLOBAL",
	0x8f: "EMPTY_SET", 0x90: "ADDITEMS", 0x91: "FROZENSET", 0x96: "BYTEARRAY8", 0x97: "NEXT_BUFFER", 0x98: "READONLY_BUFFER",
	'C': "SHORT_BINBYTES", 'B': "BINBYTES", 0x8e: "BINBYTES8", 'T': "BINSTRING", 'U': "SHORT_BINSTRING", 'S': "STRING",
}

// unpickle reads plain data: nil, bool, int64, float64, string, tuple, *list, dict. It runs nothing. Errors begin
// with the byte at which it stopped.
func unpickle(r *bufio.Reader) (any, error) {
	u := &unpickler{r: r, memo: map[uint64]any{}}
	for n := 0; ; n++ {
		at := u.at
		op, err := u.byte()
		if err == nil && n == maxPickled {
			err = fmt.Errorf("more than %d instructions, which no flight record has", maxPickled)
		}
		if err == nil && op == '.' {
			v, err := u.pop()
			if err == nil && len(u.stack) > 0 {
				err = errors.New("it ends with more than one value")
			}
			if err != nil {
				return nil, fmt.Errorf("byte %d: %w", at, err)
			}
			return v, nil
		}
		if err == nil {
			err = u.do(op)
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it is cut off")
		}
		if err != nil {
			return nil, fmt.Errorf("byte %d: %w", at, err)
		}
	}
}

// do carries out one instruction.
func (u *unpickler) do(op byte) error {
	if name := refused[op]; name != "" {
		return u.refuse(op, name)
	}
	switch op {
	case 0x80: // PROTO
		v, err := u.byte()
		if err == nil && v > 5 {
			err = fmt.Errorf("protocol %d of pickles; 0 to 5 are known", v)
		}
		return err
	case 0x95: // FRAME: how many bytes follow, which is known without
		_, err := u.number(8)
		return err
	case '(':
		return u.push(mark{})
	case '0', '1', '2': // POP, POP_MARK, DUP
		return u.turn(op)
	case 'N':
		return u.push(nil)
	case 0x88, 0x89: // NEWTRUE, NEWFALSE
		return u.push(op == 0x88)
	case 'K', 'M', 'J', 'I', 'L', 0x8a, 'G', 'F': // BININT1, BININT2, BININT, INT, LONG, LONG1, BINFLOAT, FLOAT
		v, err := u.numeral(op)
		if err != nil {
			return err
		}
		return u.push(v)
	case 'X', 0x8c, 0x8d, 'V': // BINUNICODE, SHORT_BINUNICODE, BINUNICODE8, UNICODE
		v, err := u.text(op)
		if err != nil {
			return err
		}
		return u.push(v)
	case ']', '}', ')': // EMPTY_LIST, EMPTY_DICT, EMPTY_TUPLE
		return u.push(map[byte]func() any{']': func() any { return new(list) }, '}': func() any { return dict{} }, ')': func() any { return tuple(nil) }}[op]())
	// TUPLE, LIST, DICT, APPENDS, SETITEMS, APPEND, SETITEM, TUPLE1, TUPLE2, TUPLE3
	case 't', 'l', 'd', 'e', 'u', 'a', 's', 0x85, 0x86, 0x87:
		return u.gather(op)
	case 'q', 'r', 'p', 0x94, 'h', 'j', 'g': // BINPUT, LONG_BINPUT, PUT, MEMOIZE, BINGET, LONG_BINGET, GET
		return u.remember(op)
	}
	return fmt.Errorf("0x%02x is no instruction of a pickle", op)
}

// refuse says what an instruction would have called.
func (u *unpickler) refuse(op byte, name string) error {
	what := ""
	switch op {
	case 'c', 'i':
		module, _ := u.line()
		attribute, _ := u.line()
		what = module + "." + attribute
	case 0x93:
		if n := len(u.stack); n >= 2 {
			module, _ := u.stack[n-2].(string)
			attribute, _ := u.stack[n-1].(string)
			what = module + "." + attribute
		}
	}
	if what != "" {
		return fmt.Errorf("it would have %.100q of Python called (%s): a flight record is plain data, and nothing of it is run here", what, name)
	}
	return fmt.Errorf("it has the instruction %s: a flight record is plain data (dicts, lists, tuples, texts, numbers), and nothing of it is run here", name)
}

func (u *unpickler) push(v any) error {
	u.stack = append(u.stack, v)
	return nil
}

func (u *unpickler) pop() (any, error) {
	v, err := u.top()
	if err == nil {
		u.stack = u.stack[:len(u.stack)-1]
	}
	return v, err
}

// top is the uppermost value; a mark is not a value.
func (u *unpickler) top() (any, error) {
	if n := len(u.stack); n > 0 && u.stack[n-1] != (mark{}) {
		return u.stack[n-1], nil
	}
	return nil, errors.New("it takes a value from an empty stack")
}

// marked are the values above the last mark, which is taken away with them.
func (u *unpickler) marked() ([]any, error) {
	for i := len(u.stack) - 1; i >= 0; i-- {
		if u.stack[i] == (mark{}) {
			items := append([]any(nil), u.stack[i+1:]...)
			u.stack = u.stack[:i]
			return items, nil
		}
	}
	return nil, errors.New("it takes values up to a mark that is missing")
}

// turn is POP, POP_MARK and DUP.
func (u *unpickler) turn(op byte) error {
	switch {
	case op == '1', op == '0' && len(u.stack) > 0 && u.stack[len(u.stack)-1] == (mark{}):
		_, err := u.marked()
		return err
	case op == '0':
		_, err := u.pop()
		return err
	}
	v, err := u.top()
	if err != nil {
		return err
	}
	return u.push(v)
}

// gather makes a list, tuple or dict of values, or adds them to one.
func (u *unpickler) gather(op byte) error {
	var items []any
	var err error
	switch op {
	case 'a', 0x85:
		items, err = u.take(1)
	case 's', 0x86:
		items, err = u.take(2)
	case 0x87:
		items, err = u.take(3)
	default:
		items, err = u.marked()
	}
	if err != nil {
		return err
	}
	switch op {
	case 't', 0x85, 0x86, 0x87:
		return u.push(tuple(items))
	case 'l':
		return u.push(&list{items})
	case 'd':
		d := dict{}
		if err := d.set(items); err != nil {
			return err
		}
		return u.push(d)
	}
	to, err := u.top()
	if err != nil {
		return err
	}
	switch to := to.(type) {
	case *list:
		if op == 'a' || op == 'e' {
			to.items = append(to.items, items...)
			return nil
		}
	case dict:
		if op == 's' || op == 'u' {
			return to.set(items)
		}
	}
	return fmt.Errorf("it puts items into a %T", to)
}

// take are the n uppermost values.
func (u *unpickler) take(n int) ([]any, error) {
	items := make([]any, n)
	for i := n - 1; i >= 0; i-- {
		v, err := u.pop()
		if err != nil {
			return nil, err
		}
		items[i] = v
	}
	return items, nil
}

// set sets keys, each before its value.
func (d dict) set(items []any) error {
	if len(items)%2 == 1 {
		return errors.New("a key of a dict has no value")
	}
	for i := 0; i < len(items); i += 2 {
		switch k := items[i].(type) {
		case string:
			d[k] = items[i+1]
		case int64:
			d[strconv.FormatInt(k, 10)] = items[i+1]
		default:
			return fmt.Errorf("a key of a dict is a %T, want a text or a whole number", k)
		}
	}
	return nil
}

// remember keeps a value, or puts one that was kept on the stack.
func (u *unpickler) remember(op byte) error {
	n := uint64(len(u.memo))
	var err error
	switch op {
	case 'q', 'h':
		n, err = u.number(1)
	case 'r', 'j':
		n, err = u.number(4)
	case 'p', 'g':
		var text string
		if text, err = u.line(); err == nil {
			n, err = strconv.ParseUint(text, 10, 32)
		}
	}
	if err != nil {
		return err
	}
	if op == 'q' || op == 'r' || op == 'p' || op == 0x94 {
		u.memo[n], err = u.top()
		return err
	}
	v, ok := u.memo[n]
	if !ok {
		return fmt.Errorf("it takes value %d of those it kept, and did not keep it", n)
	}
	return u.push(v)
}

// numeral reads a number, or what protocol 0 has for True and False.
func (u *unpickler) numeral(op byte) (any, error) {
	switch op {
	case 'I', 'L', 'F':
		text, err := u.line()
		switch {
		case err != nil:
			return nil, err
		case op == 'I' && (text == "00" || text == "01"):
			return text == "01", nil
		case op == 'F':
			return strconv.ParseFloat(text, 64)
		}
		return strconv.ParseInt(strings.TrimSuffix(text, "L"), 10, 64)
	case 0x8a:
		n, err := u.byte()
		if err != nil {
			return nil, err
		}
		if n > 8 {
			return nil, fmt.Errorf("a number of %d bytes, at most 8", n)
		}
		v, err := u.number(int(n))
		shift := 64 - 8*uint(n) // what is above the sign is the sign
		return int64(v<<shift) >> shift, err
	case 'G':
		var b [8]byte
		err := u.full(b[:])
		return math.Float64frombits(binary.BigEndian.Uint64(b[:])), err
	}
	v, err := u.number(map[byte]int{'K': 1, 'M': 2, 'J': 4}[op])
	if op == 'J' {
		return int64(int32(v)), err
	}
	return int64(v), err
}

var escaped = regexp.MustCompile(`\\u[0-9a-fA-F]{4}|\\U[0-9a-fA-F]{8}`)

// text reads a text.
func (u *unpickler) text(op byte) (string, error) {
	if op == 'V' { // bytes are characters, and the others are written as \u and four digits
		line, err := u.line()
		runes := make([]rune, len(line))
		for i := range len(line) {
			runes[i] = rune(line[i])
		}
		return escaped.ReplaceAllStringFunc(string(runes), func(e string) string {
			n, _ := strconv.ParseUint(e[2:], 16, 32)
			return string(rune(n))
		}), err
	}
	n, err := u.number(map[byte]int{0x8c: 1, 'X': 4, 0x8d: 8}[op])
	if err != nil {
		return "", err
	}
	if n > maxText {
		return "", fmt.Errorf("a text of %d bytes, at most %d", n, maxText)
	}
	var b strings.Builder // grows with the data present, whatever the length says
	m, err := io.CopyN(&b, u.r, int64(n))
	u.at += m
	return strings.ToValidUTF8(b.String(), "?"), err
}

// number reads an integer of that many bytes, little-endian.
func (u *unpickler) number(bytes int) (uint64, error) {
	var b [8]byte
	err := u.full(b[:bytes])
	return binary.LittleEndian.Uint64(b[:]), err
}

func (u *unpickler) byte() (byte, error) {
	b, err := u.r.ReadByte()
	if err == nil {
		u.at++
	}
	return b, err
}

func (u *unpickler) full(b []byte) error {
	n, err := io.ReadFull(u.r, b)
	u.at += int64(n)
	return err
}

// line reads up to the end of a line.
func (u *unpickler) line() (string, error) {
	text, _, err := readLine(u.r)
	u.at += int64(len(text)) + 1
	return text, err
}
