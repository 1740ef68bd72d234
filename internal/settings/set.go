package settings

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
)

// Value lists the types that a setting can have. A []string or []int is given
// as one comma-separated text, as a repeated flag, or as a YAML list.
type Value interface {
	string | Secret | bool | int | int64 | uint64 | float64 | time.Duration | []string | []int
}

// Secret is a text that is never printed.
type Secret string

// redacted replaces a Secret in all output.
const redacted = "(secret)"

// String hides the secret, so that it cannot slip into a log.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return redacted
}

// MarshalJSON hides the secret.
func (s Secret) MarshalJSON() ([]byte, error) { return json.Marshal(s.String()) }

// Origin is the origin of a value, in words: "--rank",
// "STAR_RANK", "job.yaml:3", "torchrun (RANK)", "default".
type Origin string

// Default is the origin of a value that was not set.
const Default Origin = "default"

// Set is a list of settings. The zero value is an empty set. It is used by one
// goroutine.
type Set struct {
	items  []*item // in order of declaration, which is the order of printing
	byName map[string]*item

	flags flagState
}

// item is one setting. Its functions know the type, nothing else does.
type item struct {
	name, help string
	kind       string // what --help calls the value: "duration", "int"
	choices    []string
	list       bool
	secret     bool
	origin     Origin

	reset func()               // store the default
	parse func([]string) error // parse and store the texts; more than one only for lists
	text  func() string        // the value as it would be typed
	def   func() string        // the default as it would be typed
	value func() any           // the value for JSON
}

// Var declares a setting. Its value is stored in *p, which keeps what it has
// until Resolve. The name is in kebab-case; declaring one twice is a bug and
// panics. choices, if any, are the only texts that are accepted.
func Var[T Value](s *Set, p *T, name string, def T, help string, choices ...string) {
	if !kebab(name) {
		panic("settings: bad name " + strconv.Quote(name))
	}
	if s.byName == nil {
		s.byName = make(map[string]*item)
	}
	if s.byName[name] != nil || name == configFlag || name == printFlag {
		panic("settings: declared twice: " + name)
	}
	def = atHome(def, Home())
	it := &item{
		name: name, help: help, choices: choices, origin: Default,
		kind:  kindOf(def),
		reset: func() { *p = clone(def) },
		text:  func() string { return format(*p) },
		def:   func() string { return format(def) },
		value: func() any { return jsonValue(*p) },
		parse: func(texts []string) error {
			v, err := parse[T](texts)
			if err == nil {
				*p = v
			}
			return err
		},
	}
	switch any(def).(type) {
	case []string, []int:
		it.list = true
	case Secret:
		it.secret = true
	}
	s.items = append(s.items, it)
	s.byName[name] = it
}

// Origin returns where the value of a setting came from. It panics if there is
// no such setting.
func (s *Set) Origin(name string) Origin { return s.item(name).origin }

// IsSet reports whether the value was set explicitly.
func (s *Set) IsSet(name string) bool { return s.item(name).origin != Default }

// Invalid makes the error for a value that cannot be used. It names the setting,
// the value and the origin, so err only needs the reason and the remedy.
func (s *Set) Invalid(name string, err error) error {
	it := s.item(name)
	value := it.text()
	if it.secret {
		value = redacted
	}
	from := " (from " + string(it.origin) + ")"
	switch it.origin {
	case Default:
		from = " (the default)"
	case Origin("--" + name):
		from = ""
	}
	return &UsageError{fmt.Sprintf("--%s %s%s: %v", name, quote(value), from, err)}
}

func (s *Set) item(name string) *item {
	it := s.byName[name]
	if it == nil {
		panic("settings: no setting " + strconv.Quote(name))
	}
	return it
}

// Names lists the settings in order of declaration.
func (s *Set) Names() []string {
	names := make([]string, len(s.items))
	for i, it := range s.items {
		names[i] = it.name
	}
	return names
}

// apply stores texts from one origin, or returns an error.
func (s *Set) apply(it *item, texts []string, from Origin) error {
	where := string(from)
	if where != "--"+it.name && where != Variable(it.name) {
		where += ": " + it.name
	}
	if len(it.choices) > 0 {
		for _, t := range texts {
			if err := it.oneOf(t); err != nil {
				return &UsageError{fmt.Sprintf("%s: %v", where, err)}
			}
		}
	}
	if err := it.parse(texts); err != nil {
		return &UsageError{fmt.Sprintf("%s: %v", where, err)}
	}
	it.origin = from
	return nil
}

// named are the choices with a name: "" means the behaviour without the setting.
func named(choices []string) []string {
	return slices.DeleteFunc(slices.Clone(choices), func(c string) bool { return c == "" })
}

func (it *item) oneOf(text string) error {
	for _, c := range it.choices {
		if text == c {
			return nil
		}
	}
	return fmt.Errorf("%s is not one of %s%s", quote(text), strings.Join(named(it.choices), ", "),
		meant(text, it.choices, ""))
}

// Environ returns the settings as variables, NAME=value, for a child process: all with an origin
// other than the default, except the named ones. Secrets are included in plain text: ps does not
// show variables, as it does arguments.
func (s *Set) Environ(except ...string) []string {
	skip := make(map[string]bool, len(except))
	for _, name := range except {
		s.item(name) // a misspelt exception would leak a setting
		skip[name] = true
	}
	var env []string
	for _, it := range s.items {
		if it.origin == Default || skip[it.name] {
			continue
		}
		if text := it.text(); text != "" {
			env = append(env, Variable(it.name)+"="+text)
		}
	}
	return env
}

// Print writes every value with its origin, as a table.
func (s *Set) Print(w io.Writer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "SETTING\tVALUE\tORIGIN")
	for _, it := range s.items {
		text := it.text()
		if it.secret && text != "" {
			text = redacted
		}
		if text == "" {
			text = "-"
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\n", it.name, text, it.origin)
	}
	return tw.Flush()
}

// MarshalJSON gives {"name": {"value": …, "origin": "…"}, …} in order of
// declaration. Durations are in seconds; secrets are redacted.
func (s *Set) MarshalJSON() ([]byte, error) {
	return s.marshal(func(it *item) any {
		return struct {
			Value  any    `json:"value"`
			Origin Origin `json:"origin"`
		}{it.value(), it.origin}
	})
}

// marshal writes one object with a member for each setting, in order.
func (s *Set) marshal(member func(*item) any) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('{')
	for i, it := range s.items {
		if i > 0 {
			b.WriteByte(',')
		}
		v, err := json.Marshal(member(it))
		if err != nil {
			return nil, fmt.Errorf("setting %s: %w", it.name, err)
		}
		fmt.Fprintf(&b, "%q:%s", it.name, v)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// parse reads a value of type T. Only lists may have more than one text.
func parse[T Value](texts []string) (T, error) {
	var v T
	var err error
	text := ""
	if len(texts) > 0 {
		text = texts[len(texts)-1] // a scalar flag given twice: the last one counts, as everywhere
	}
	switch p := any(&v).(type) {
	case *string:
		*p = text
	case *Secret:
		*p = Secret(text)
	case *bool:
		if *p, err = strconv.ParseBool(text); err != nil {
			err = fmt.Errorf("%s is not true or false", quote(text))
		}
	case *int:
		*p, err = strconv.Atoi(text)
		err = numError(text, "a whole number", err)
	case *int64:
		*p, err = strconv.ParseInt(text, 10, 64)
		err = numError(text, "a whole number", err)
	case *uint64:
		*p, err = strconv.ParseUint(text, 10, 64)
		err = numError(text, "a whole number of at least 0", err)
	case *float64:
		*p, err = strconv.ParseFloat(text, 64)
		err = numError(text, "a number", err)
		if err == nil && (math.IsNaN(*p) || math.IsInf(*p, 0)) {
			err = fmt.Errorf("%s is not a finite number", quote(text))
		}
	case *time.Duration:
		if *p, err = time.ParseDuration(text); err != nil {
			err = fmt.Errorf("%s is not a duration; write a unit, such as 500ms, 30s or 5m", quote(text))
		}
	case *[]string:
		*p = split(texts)
	case *[]int:
		for _, w := range split(texts) {
			n, e := strconv.Atoi(w)
			if e != nil {
				return v, numError(w, "a whole number", e)
			}
			*p = append(*p, n)
		}
	}
	return v, err
}

func numError(text, what string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, strconv.ErrRange) {
		return fmt.Errorf("%s is out of range", quote(text))
	}
	return fmt.Errorf("%s is not %s", quote(text), what)
}

// split cuts lists at commas and leaves out empty elements.
func split(texts []string) []string {
	var words []string
	for _, t := range texts {
		for w := range strings.SplitSeq(t, ",") {
			if w = strings.TrimSpace(w); w != "" {
				words = append(words, w)
			}
		}
	}
	return words
}

// format writes a value as it would be typed: parse(format(v)) is v.
func format[T Value](v T) string {
	switch v := any(v).(type) {
	case string:
		return v
	case Secret:
		return string(v)
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64)
	case time.Duration:
		return shortDuration(v)
	case []string:
		return strings.Join(v, ",")
	case []int:
		words := make([]string, len(v))
		for i, n := range v {
			words[i] = strconv.Itoa(n)
		}
		return strings.Join(words, ",")
	default:
		return fmt.Sprint(v)
	}
}

// shortDuration writes 1m instead of 1m0s and 1h instead of 1h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

func clone[T Value](v T) T {
	switch p := any(&v).(type) {
	case *[]string:
		*p = append([]string(nil), *p...)
	case *[]int:
		*p = append([]int(nil), *p...)
	}
	return v
}

func jsonValue[T Value](v T) any {
	switch v := any(v).(type) {
	case time.Duration:
		return v.Seconds()
	case []string:
		if v == nil {
			return []string{}
		}
	case []int:
		if v == nil {
			return []int{}
		}
	}
	return v
}

func kindOf[T Value](v T) string {
	switch any(v).(type) {
	case string, Secret:
		return "string"
	case int, int64, uint64:
		return "int"
	case float64:
		return "float"
	case time.Duration:
		return "duration"
	case []string, []int:
		return "list"
	}
	return "bool"
}

// kebab reports whether a name is made of lower-case words with single hyphens.
func kebab(name string) bool {
	for w := range strings.SplitSeq(name, "-") {
		if w == "" || strings.Trim(w, "abcdefghijklmnopqrstuvwxyz0123456789") != "" {
			return false
		}
	}
	return true
}

// quote makes control characters and emptiness visible.
func quote(text string) string {
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return strconv.Quote(text)
}
