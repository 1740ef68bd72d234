// Command gen reads messages.go of package wire, the table of messages, and writes the files and the parts of
// docs/protocol.md that are generated from it. It runs in the folder of the package.
package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/build"
	"go/constant"
	"go/format"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"log"
	"math"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

func main() {
	fs, err := files(".")
	if err != nil {
		log.Fatal(err)
	}
	for name, text := range fs {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// message is one message, or the type of a list's elements.
type message struct {
	name    string // of the type
	kind    int    // 0: not a message
	wire    string // name of the kind
	payload string // its class
	hooks   bool
	like    string   // type that has its fields; empty: itself
	doc     []string // paragraphs
	sent    [][2]string
	carries string // describes the payload; empty: no payload
	fields  []field
}

// field is one field of a header.
type field struct {
	name     string // of the struct's field
	at       string // selector in the message
	wire     string
	typ      types.Type
	lo, hi   string // expressions; empty: unset
	natural  bool
	any      bool
	amount   bool
	max      string
	eachText string // max of each string
	eachLo   string
	eachHi   string
	cut      bool
	absent   bool
	def      string
	hidden   bool
	doc      string
}

type table struct {
	pkg      *types.Package
	messages []*message // by kind
	rows     map[string]*message
}

// connections are the pairs of processes that talk: the dialler and the listener.
var connections = [][2]string{
	{"worker", "coordinator"}, {"server", "coordinator"}, {"worker", "shard"}, {"new server", "old server"},
	{"rider", "ring member"}, {"child", "parent"}, {"tool", "coordinator"}, {"coordinator candidate", "another one"},
	{"server or worker", "cluster service"}, {"tool", "cluster service"},
}

// begins is the pair of the first messages of every connection.
var begins = [2]string{"dialler", "listener"}

// files returns the generated files of the table in dir, by their paths relative to dir.
func files(dir string) (map[string][]byte, error) {
	t, err := read(dir)
	if err != nil {
		return nil, err
	}
	out := map[string][]byte{}
	for name, text := range map[string]string{
		"codec_gen.go": t.codec(), "list_gen_test.go": t.list(), "../parse_gen_test.go": t.parsers(),
	} {
		if out[name], err = format.Source([]byte(text)); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	const page = "../../docs/protocol.md"
	old, err := os.ReadFile(filepath.Join(dir, page))
	if err != nil {
		return nil, err
	}
	text := string(old)
	parts := map[string]string{"messages": t.sections(), "limits": t.limits()}
	for name, part := range parts {
		begin := fmt.Sprintf("<!-- %s: generated from transport/wire/messages.go -->\n", name)
		end := fmt.Sprintf("<!-- end of %s -->", name)
		before, rest, ok := strings.Cut(text, begin)
		_, after, ok2 := strings.Cut(rest, end)
		if !ok || !ok2 {
			return nil, fmt.Errorf("%s has no %q followed by %q", page, strings.TrimSpace(begin), end)
		}
		text = before + begin + "\n" + part + "\n" + end + after
	}
	out[page] = []byte(text)
	return out, nil
}

// read parses the package.
func read(dir string) (*table, error) {
	fset := token.NewFileSet()
	var parsed []*ast.File
	byName := map[string]*ast.File{}
	for _, name := range []string{"messages.go", "codec.go", "msgpack.go"} {
		f, err := parser.ParseFile(fset, filepath.Join(dir, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		parsed, byName[name] = append(parsed, f), f
	}
	if build.Default.GOROOT == "" { // so in a program built with -trimpath; the importer reads Go's sources
		root, err := exec.Command("go", "env", "GOROOT").Output()
		if err != nil {
			return nil, fmt.Errorf("go env GOROOT: %w", err)
		}
		build.Default.GOROOT = strings.TrimSpace(string(root))
	}
	// The generated files are missing, so errors are expected; types and constants are still complete.
	conf := types.Config{Importer: importer.ForCompiler(fset, "source", nil), Error: func(error) {}}
	pkg, _ := conf.Check("star/transport/wire", fset, parsed, nil)
	t := &table{pkg: pkg, rows: map[string]*message{}}
	kinds := map[int]*message{}
	for _, d := range byName["messages.go"].Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			continue
		}
		spec := g.Specs[0].(*ast.TypeSpec)
		m := &message{name: spec.Name.Name, wire: kebab(spec.Name.Name)}
		if err := m.describe(g.Doc); err != nil {
			return nil, err
		}
		switch s := spec.Type.(type) {
		case *ast.StructType:
			for _, f := range s.Fields.List {
				if err := t.field(m, f); err != nil {
					return nil, fmt.Errorf("%s: %w", m.name, err)
				}
			}
			t.rows[m.name] = m
		case *ast.Ident:
			m.like = s.Name
		}
		if m.kind == 0 {
			continue
		}
		if kinds[m.kind] != nil {
			return nil, fmt.Errorf("%s and %s are both kind %d", kinds[m.kind].name, m.name, m.kind)
		}
		kinds[m.kind] = m
	}
	for k := 1; len(t.messages) < len(kinds); k++ {
		m := kinds[k]
		if m == nil {
			return nil, fmt.Errorf("no message has kind %d", k)
		}
		if m.like != "" {
			m.fields = t.rows[m.like].fields
		}
		t.messages = append(t.messages, m)
	}
	for _, m := range t.messages {
		if len(m.fields) == 1 && m.fields[0].wire == "fields" { // of a type in another package
			outer := m.fields[0]
			m.fields = slices.Clone(t.rows[outer.def].fields)
			for i := range m.fields {
				m.fields[i].at = outer.at + "." + m.fields[i].name
			}
		}
		for _, s := range m.sent {
			either := func(c [2]string) bool { return s == c || s == [2]string{c[1], c[0]} }
			if !either(begins) && !slices.ContainsFunc(connections, either) {
				return nil, fmt.Errorf("%s: %s → %s: no such connection", m.name, s[0], s[1])
			}
		}
		if len(m.sent) == 0 {
			return nil, fmt.Errorf("%s: the comment has no line Sent", m.name)
		}
	}
	return t, nil
}

// describe parses the comment above a type.
func (m *message) describe(doc *ast.CommentGroup) error {
	if doc == nil {
		return nil
	}
	for _, c := range doc.List {
		rest, ok := strings.CutPrefix(c.Text, "//wire:kind ")
		if !ok {
			continue
		}
		words := strings.Fields(rest)
		var err error
		if m.kind, err = strconv.Atoi(words[0]); err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		m.payload = "none"
		for _, w := range words[1:] {
			switch p, ok := strings.CutPrefix(w, "payload="); {
			case ok:
				m.payload = p
			case w == "hooks":
				m.hooks = true
			default:
				return fmt.Errorf("%s: %q", m.name, w)
			}
		}
	}
	for paragraph := range strings.SplitSeq(strings.TrimSpace(doc.Text()), "\n\n") {
		text := strings.Join(strings.Fields(paragraph), " ")
		sent, ok := strings.CutPrefix(text, "Sent: ")
		if !ok {
			m.doc = append(m.doc, text)
			continue
		}
		sent, m.carries, _ = strings.Cut(sent, ". Payload: ")
		for pair := range strings.SplitSeq(strings.TrimSuffix(sent, "."), ", ") {
			from, to, ok := strings.Cut(pair, " → ")
			if !ok {
				return fmt.Errorf("%s: %q is not from → to", m.name, pair)
			}
			m.sent = append(m.sent, [2]string{from, to})
		}
	}
	return nil
}

// field adds the fields that one line of a struct declares.
func (t *table) field(m *message, f *ast.Field) error {
	doc := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
	tag := ""
	if f.Tag != nil {
		text, err := strconv.Unquote(f.Tag.Value)
		if err != nil {
			return err
		}
		tag = reflect.StructTag(text).Get("wire")
	}
	owner := t.pkg.Scope().Lookup(m.name).Type().Underlying().(*types.Struct)
	for _, n := range f.Names {
		fl := field{name: n.Name, at: n.Name, wire: snake(n.Name), doc: doc}
		for i := range owner.NumFields() {
			if owner.Field(i).Name() == n.Name {
				fl.typ = owner.Field(i).Type()
			}
		}
		for word := range strings.SplitSeq(tag, ",") {
			key, value, _ := strings.Cut(word, "=")
			lo, hi, ranged := strings.Cut(word, "..")
			switch {
			case word == "":
			case key == "fields":
				fl.wire, fl.def = "fields", value
			case key == "max":
				fl.max = value
			case key == "each":
				if lo, hi, ok := strings.Cut(value, ".."); ok {
					fl.eachLo, fl.eachHi = lo, hi
				} else {
					fl.eachText = value
				}
			case key == "absent":
				fl.absent, fl.def = true, value
			case ranged:
				fl.lo, fl.hi = lo, hi
			case word == "natural":
				fl.natural = true
			case word == "any":
				fl.any = true
			case word == "amount":
				fl.amount = true
			case word == "cut":
				fl.cut = true
			case word == "hidden":
				fl.hidden = true
			default:
				return fmt.Errorf("%s: unknown word %q in the tag", n.Name, word)
			}
		}
		m.fields = append(m.fields, fl)
	}
	return nil
}

// is reports whether a type has that name, as in time.Duration.
func is(t types.Type, name string) bool {
	return types.TypeString(t, func(p *types.Package) string { return p.Name() }) == name
}

func local(t types.Type) string {
	return types.TypeString(t, func(p *types.Package) string {
		if p.Name() == "wire" {
			return ""
		}
		return p.Name()
	})
}

func kebab(s string) string { return strings.ReplaceAll(snake(s), "_", "-") }

// snake returns norm_first for NormFirst, and cost_cpu for CostCPU.
func snake(s string) string {
	var b strings.Builder
	rs := []rune(s)
	for i, r := range rs {
		if unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(rs[i-1]) || i+1 < len(rs) && unicode.IsLower(rs[i+1])) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func (f field) basic() types.BasicInfo {
	if b, ok := f.typ.Underlying().(*types.Basic); ok {
		return b.Info()
	}
	return 0
}

// bounds returns the range of an integer field, as expressions.
func (f field) bounds() (lo, hi string) {
	switch {
	case f.lo != "":
		return f.lo, f.hi
	case f.natural:
		return "0", "math.MaxInt64"
	case is(f.typ, "star.Worker"):
		return "0", "MaxWorkers-1"
	case is(f.typ, "time.Duration"):
		return "-maxTime", "maxTime"
	}
	return "", ""
}

func (f field) limit() string {
	if f.max == "" {
		return "maxName"
	}
	return f.max
}

// append returns the statement that appends the field of message or struct of.
func (t *table) append(f field, of string) string {
	v := of + "." + f.at
	if of == "" {
		v = f.at
	}
	one := func(v string, typ types.Type, cut bool) string {
		switch b, _ := typ.Underlying().(*types.Basic); {
		case b != nil && b.Kind() == types.Float32:
			return fmt.Sprintf("dst = appendFloat32(dst, %s)", v)
		case b != nil && b.Info()&types.IsFloat != 0:
			return fmt.Sprintf("dst = appendFloat64(dst, %s)", v)
		case b != nil && b.Info()&types.IsBoolean != 0:
			return fmt.Sprintf("dst = appendBool(dst, %s)", v)
		case b != nil && b.Info()&types.IsString != 0 && cut:
			return fmt.Sprintf("dst = appendText(dst, %s, %s)", v, f.limit())
		case b != nil && b.Info()&types.IsString != 0:
			return fmt.Sprintf("dst = appendString(dst, %s)", v)
		case b != nil && is(typ, "int64"):
			return fmt.Sprintf("dst = appendInt(dst, %s)", v)
		case b != nil:
			return fmt.Sprintf("dst = appendInt(dst, int64(%s))", v)
		}
		return fmt.Sprintf("dst = %s.appendRow(dst)", v)
	}
	switch typ := f.typ.(type) {
	case *types.Slice:
		s := fmt.Sprintf("dst = appendArray(dst, len(%s))\n", v)
		if _, row := typ.Elem().Underlying().(*types.Struct); row {
			return s + fmt.Sprintf("for i := range %s {\n%s\n}", v, one(v+"[i]", typ.Elem(), f.cut))
		}
		return s + fmt.Sprintf("for _, v := range %s {\n%s\n}", v, one("v", typ.Elem(), f.cut))
	default:
		if is(f.typ, "star.Telemetry") {
			return fmt.Sprintf("dst = appendTelemetry(dst, &%s)", v)
		}
		return one(v, f.typ, f.cut)
	}
}

// parse returns the statement that reads the field. under is the name in errors. outer: the field is an element of the
// header's own array.
func (t *table) parse(f field, of, under string, outer bool) string {
	v := of + "." + f.at
	between, words, float := "between", "text", "real"
	conv := func(expr string, typ types.Type) string {
		if is(typ, "int64") {
			return expr
		}
		return fmt.Sprintf("%s(%s)", local(typ), expr)
	}
	count := ""
	if outer {
		count = "p.left--\n"
		between = "within"
	}
	name := strconv.Quote(under)
	switch b := f.basic(); {
	case f.hidden:
		return ""
	case is(f.typ, "star.Telemetry"):
		return fmt.Sprintf("p.telemetry(&%s)", v)
	case b&types.IsInteger != 0 && f.any:
		return fmt.Sprintf("%s%s = %s", count, v, conv(fmt.Sprintf("p.raw(%s)", name), f.typ))
	case b&types.IsInteger != 0:
		lo, hi := f.bounds()
		if lo == "" {
			panic(f.name + " has no bounds")
		}
		if n, ok := f.typ.(*types.Named); ok && n.Obj().Pkg() == t.pkg { // an enumeration
			hi = "int64(" + hi + ")"
		}
		return fmt.Sprintf("%s = %s", v, conv(fmt.Sprintf("p.%s(%s, %s, %s)", between, name, lo, hi), f.typ))
	case b&types.IsFloat != 0 && f.amount:
		return fmt.Sprintf("%s%s = p.positive(%s)", count, v, name)
	case b&types.IsFloat != 0:
		expr := fmt.Sprintf("p.%s(%s)", float, name)
		if !is(f.typ, "float64") {
			expr = fmt.Sprintf("%s(%s)", local(f.typ), expr)
		}
		return fmt.Sprintf("%s%s = %s", count, v, expr)
	case b&types.IsBoolean != 0:
		return fmt.Sprintf("%s%s = p.truth(%s)", count, v, name)
	case b&types.IsString != 0:
		return fmt.Sprintf("%sif s := p.%s(%s, %s); %s != string(s) {\n%s = string(s)\n}", count, words, name, f.limit(), v, v)
	}
	if s, ok := f.typ.(*types.Slice); ok {
		elem := field{name: "v", at: "v", typ: s.Elem(), lo: f.eachLo, hi: f.eachHi, max: f.eachText}
		max := f.max
		if max == "" {
			panic(f.name + " has no max")
		}
		var body string
		if _, row := s.Elem().Underlying().(*types.Struct); row {
			body = fmt.Sprintf("var v %s\nif v.parseRow(p, %s); p.err != nil {\nbreak\n}\n%s = append(%s, v)", local(s.Elem()), name, v, v)
		} else {
			one := field{name: "v", at: "v", typ: elem.typ, lo: elem.lo, hi: elem.hi, max: elem.max}
			if one.basic()&types.IsString != 0 {
				body = fmt.Sprintf("%s = append(%s, string(p.text(%s, %s)))", v, v, name, one.limit())
			} else {
				lo, hi := one.bounds()
				body = fmt.Sprintf("%s = append(%s, %s)", v, v, conv(fmt.Sprintf("p.between(%s, %s, %s)", name, lo, hi), s.Elem()))
			}
		}
		return fmt.Sprintf("%s%s = %s[:0]\nif n := p.arrayLen(%s, %s); n > 0 {\n%s = slices.Grow(%s, n)\nfor range n {\n%s\n}\n}", count, v, v, name, max, v, v, body)
	}
	return fmt.Sprintf("%s%s.parseRow(p, %s)", count, v, name)
}

const generated = "// Code generated from messages.go by go generate; DO NOT EDIT.\n\n"

// codec returns the source of codec_gen.go.
func (t *table) codec() string {
	var b bytes.Buffer
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	w("%spackage wire\n\nimport (\n\"math\"\n\"slices\"\n\"time\"\n\n\"star\"\n)\n\n// The kinds of frames. LastKind is the greatest one.\nconst (", generated)
	for _, m := range t.messages {
		w("Kind%s Kind = %d", m.name, m.kind)
	}
	w("\nLastKind = Kind%s\n)\n\nvar kindNames = [...]string{", t.messages[len(t.messages)-1].name)
	for _, m := range t.messages {
		w("Kind%s: %q,", m.name, m.wire)
	}
	w("}\n\nvar payloads = [...]Payload{")
	for _, m := range t.messages {
		if m.payload != "none" {
			w("Kind%s: %s,", m.name, strings.ToUpper(m.payload[:1])+m.payload[1:])
		}
	}
	w("LastKind + 1: None,\n}\n")
	inner := t.inner()
	for _, m := range t.messages {
		w("\n// Kind is %s.", m.wire)
		w("func (%s) Kind() Kind { return Kind%s }\n", m.name, m.name)
		w("// AppendTo appends the header of m to dst.")
		if m.like != "" {
			w("func (m %s) AppendTo(dst []byte) []byte { return %s(m).AppendTo(dst) }\n", m.name, m.like)
			w("// Parse parses the header of %s into m and reuses its memory.", article(m.name))
			w("func (m *%s) Parse(b []byte) error { return (*%s)(m).parse(Kind%s, b) }\n", m.name, m.like, m.name)
		} else {
			w("func (m %s) AppendTo(dst []byte) []byte {", m.name)
			if m.hooks {
				w("m.sending()")
			}
			w("dst = appendArray(dst, %d)", len(m.fields))
			need := 0
			for _, f := range m.fields {
				if !f.hidden {
					w("%s", t.append(f, "m"))
				}
				if !f.absent {
					need++
				}
			}
			w("return dst\n}\n\n// Parse parses the header of %s into m and reuses its memory.", article(m.name))
			if t.copied(m.name) {
				w("func (m *%s) Parse(b []byte) error { return m.parse(Kind%s, b) }\n", m.name, m.name)
				w("func (m *%s) parse(k Kind, b []byte) error {\nreader := parse(k, b, %d)", m.name, need)
			} else {
				w("func (m *%s) Parse(b []byte) error {\nreader := parse(Kind%s, b, %d)", m.name, m.name, need)
			}
			w("p := &reader")
			for _, f := range m.fields {
				s := t.parse(f, "m", f.wire, true)
				if s == "" {
					continue
				}
				if f.absent && !is(f.typ, "star.Telemetry") {
					zero := f.def
					switch {
					case zero != "":
					case f.basic()&types.IsString != 0:
						zero = `""`
					case f.basic()&types.IsBoolean != 0:
						zero = "false"
					case f.basic() != 0:
						zero = "0"
					}
					if _, list := f.typ.(*types.Slice); list {
						zero = "m." + f.at + "[:0]"
					}
					w("if m.%s = %s; p.more() {\n%s\n}", f.at, zero, s)
					continue
				}
				w("%s", s)
			}
			if m.hooks {
				w("m.received(p)")
			}
			w("return p.end()\n}\n")
		}
		w("// Parse%s parses the header of %s into new memory. Errors are a *ParseError.", m.name, article(m.name))
		w("func Parse%s(b []byte) (m %s, err error) {\nerr = m.Parse(b)\nreturn m, err\n}", m.name, m.name)
	}
	for _, m := range inner {
		w("\nfunc (m *%s) appendRow(dst []byte) []byte {\ndst = appendArray(dst, %d)", m.name, len(m.fields))
		for _, f := range m.fields {
			w("%s", t.append(f, "m"))
		}
		w("return dst\n}\n\nfunc (m *%s) parseRow(p *parser, under string) {\nextra := p.row(under, %d)", m.name, len(m.fields))
		for _, f := range m.fields {
			w("%s", strings.ReplaceAll(t.parse(f, "m", "under", false), `"under"`, "under"))
		}
		w("p.skip(extra)\n}")
	}
	return b.String()
}

func article(name string) string {
	if strings.ContainsAny(name[:1], "AEIOU") && name != "Usage" {
		return "an " + name
	}
	return "a " + name
}

// inner returns the types of elements inside messages, by name.
func (t *table) inner() []*message {
	seen := map[string]*message{}
	for _, m := range t.messages {
		for _, f := range m.fields {
			typ := f.typ
			if s, ok := typ.(*types.Slice); ok {
				typ = s.Elem()
			}
			if _, ok := typ.Underlying().(*types.Struct); ok && t.rows[local(typ)] != nil {
				seen[local(typ)] = t.rows[local(typ)]
			}
		}
	}
	var out []*message
	for _, m := range seen {
		out = append(out, m)
	}
	slices.SortFunc(out, func(a, b *message) int { return strings.Compare(a.name, b.name) })
	return out
}

// copied reports whether another message has the same fields.
func (t *table) copied(name string) bool {
	return slices.ContainsFunc(t.messages, func(m *message) bool { return m.like == name })
}

// list returns the source of list_gen_test.go, the tables of the tests.
func (t *table) list() string {
	var b bytes.Buffer
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	w("%spackage wire\n\n// fresh has an empty message of each kind.\nvar fresh = [...]func() parsing{", generated)
	for _, m := range t.messages {
		w("Kind%s: func() parsing { return new(%s) },", m.name, m.name)
	}
	w("}\n\n// fields has the names of the fields of each kind, those that may be absent last.\nvar fields = [...]struct{ needed, absent []string }{")
	for _, m := range t.messages {
		var names [2]string
		for _, f := range m.fields {
			at := 0
			if f.absent {
				at = 1
			}
			names[at] += fmt.Sprintf("%q, ", f.wire)
		}
		for i := range names {
			if names[i] = "[]string{" + names[i] + "}"; names[i] == "[]string{}" {
				names[i] = "nil"
			}
		}
		w("Kind%s: {%s, %s},", m.name, names[0], names[1])
	}
	w("}\n\n// ranges are the bounds of integer fields.\nvar ranges = []struct {\nkind Kind\nplace int\nfield string\nlo, hi int64\n}{")
	for _, m := range t.messages {
		for i, f := range m.fields {
			if lo, hi := f.bounds(); lo != "" && f.basic()&types.IsInteger != 0 {
				l, h := t.value(lo), t.value(hi)
				w("{Kind%s, %d, %q, %d, %d},", m.name, i, f.wire, l, h)
			}
		}
	}
	w("}")
	return b.String()
}

// parsers returns the source by which tests of package transport read any header.
func (t *table) parsers() string {
	var b bytes.Buffer
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	w("// Code generated from wire/messages.go by go generate; DO NOT EDIT.\n\npackage transport\n\nimport \"star/transport/wire\"\n\nvar parsers = [...]func([]byte) (wire.Message, error){")
	for _, m := range t.messages {
		w("wire.Kind%s: func(b []byte) (wire.Message, error) { return as(wire.Parse%s(b)) },", m.name, m.name)
	}
	w("}")
	return b.String()
}

// value returns the value of a constant expression.
func (t *table) value(expr string) int64 {
	if expr == "math.MaxInt64" {
		return 1<<63 - 1
	}
	tv, err := types.Eval(token.NewFileSet(), t.pkg, token.NoPos, expr)
	if err != nil {
		panic(err)
	}
	v, ok := constant.Int64Val(constant.ToInt(tv.Value))
	if !ok {
		panic(expr)
	}
	return v
}

// number returns v as docs/protocol.md writes it.
func number(v int64) string {
	power := func(v int64) string { return "2^" + strconv.Itoa(bits.TrailingZeros64(uint64(v))) }
	switch {
	case v > 1<<30 && v&(v+1) == 0: // also 2^63−1, where v+1 overflows
		return power(v+1) + "−1"
	case v >= 1<<20 && v&(v-1) == 0:
		return power(v)
	}
	return strings.ReplaceAll(strconv.FormatInt(v, 10), "-", "−")
}

// kindOf returns the type of a field in the notation of docs/protocol.md.
func (t *table) kindOf(f field) string {
	lo, hi := f.bounds()
	between := func(lo, hi string) string {
		switch a, b := t.value(lo), t.value(hi); {
		case b == math.MaxInt64 && a == 0:
			return "uint"
		case b == math.MaxInt64:
			return "≥" + number(a)
		default:
			return number(a) + "…" + number(b)
		}
	}
	switch b := f.basic(); {
	case is(f.typ, "star.Telemetry"):
		return fmt.Sprintf("float×%s", f.max)
	case is(f.typ, "time.Duration") && lo == "0":
		return "ns≥0"
	case is(f.typ, "time.Duration"):
		return "ns"
	case b&types.IsInteger != 0 && f.any:
		return "int"
	case b&types.IsInteger != 0:
		return between(lo, hi)
	case b&types.IsFloat != 0 && f.amount:
		return "float≥0"
	case b&types.IsFloat != 0:
		return "float"
	case b&types.IsBoolean != 0:
		return "bool"
	case b&types.IsString != 0:
		return fmt.Sprintf("string(%d)", t.value(f.limit()))
	}
	if s, ok := f.typ.(*types.Slice); ok {
		elem := field{typ: s.Elem(), lo: f.eachLo, hi: f.eachHi, max: f.eachText}
		what := t.kindOf(elem)
		if strings.ContainsAny(what, "…≥") {
			what = "(" + what + ")"
		}
		if is(s.Elem(), "star.Worker") {
			what = "worker"
		}
		return fmt.Sprintf("%s×%d", what, t.value(f.max))
	}
	if is(f.typ, "wire.Amounts") {
		return "amounts"
	}
	var names []string
	for _, f := range t.rows[local(f.typ)].fields {
		names = append(names, f.wire)
	}
	return "[" + strings.Join(names, ",") + "]"
}

// sections returns the descriptions of the messages for docs/protocol.md: one sentence a line, and the fields as a
// list that is numbered by their places in the header.
func (t *table) sections() string {
	var b bytes.Buffer
	w := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	for _, m := range t.messages {
		var sent []string
		for _, s := range m.sent {
			sent = append(sent, s[0]+"→"+s[1])
		}
		w("### %d %s\n\n*%s.*", m.kind, m.wire, strings.Join(sent, ", "))
		for i, p := range m.doc {
			if i == 0 {
				p = m.untitled(p)
			}
			w("%s", strings.ReplaceAll(p, ". ", ".\n"))
		}
		if m.carries != "" {
			w("Payload: %s", strings.ReplaceAll(m.carries, ". ", ".\n"))
		}
		if m.like != "" {
			w("The fields are those of %s.\n", kebab(m.like))
			continue
		}
		w("")
		for i, f := range m.fields {
			typ := t.kindOf(f)
			if f.absent {
				typ += "?"
			}
			if f.def != "" {
				typ += "=" + strings.ReplaceAll(f.def, "-", "−")
			}
			w("%s", strings.TrimSpace(fmt.Sprintf("%d. `%s:%s` %s", i, f.wire, typ, f.doc)))
		}
		w("")
	}
	return strings.TrimSpace(b.String()) + "\n"
}

// untitled returns a comment without the type's name at its start, which the heading has already.
func (m *message) untitled(doc string) string {
	doc = strings.TrimPrefix(doc, m.name+" ")
	for _, verb := range []string{"is ", "are "} {
		doc = strings.TrimPrefix(doc, verb)
	}
	return strings.ToUpper(doc[:1]) + doc[1:]
}

// limits returns the table of the payloads' limits.
func (t *table) limits() string {
	var b strings.Builder
	b.WriteString("| kinds | payload at most |\n|---|---|\n")
	for _, class := range [][2]string{
		{"data", "4 GiB, and exactly the size that the receiver expects"},
		{"text", "16 MiB"}, {"probe", "64 MiB"}, {"bins", "64 KiB"}, {"memo", "256 KiB"},
	} {
		var names []string
		for _, m := range t.messages {
			if m.payload == class[0] {
				names = append(names, m.wire)
			}
		}
		fmt.Fprintf(&b, "| %s | %s |\n", strings.Join(names, ", "), class[1])
	}
	b.WriteString("| all others | none |\n")
	return b.String()
}
