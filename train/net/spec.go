package net

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"

	"star/train"
)

// A Spec says which model to build.
type Spec struct {
	// Name is one of Names.
	Name string

	// Settings are the model's own settings as text, as Parse gives them.
	// What is absent has its default; Describe lists them all.
	Settings map[string]string

	// Input is what the data set feeds the model.
	Input train.Input

	// Batch is the batch size for which the graph is prepared when the model is
	// built; other sizes are prepared when they come. Zero prepares none.
	Batch int

	// Seed of the initial parameters and of dropout.
	Seed uint64
}

// Parse reads "name" or "name:key=value,key=value". Input, Batch and Seed are left
// for the caller. An unknown name, key or value is an error that lists what there is.
func Parse(s string) (Spec, error) {
	name, rest, has := strings.Cut(s, ":")
	spec := Spec{Name: strings.TrimSpace(name)}
	if has {
		spec.Settings = map[string]string{}
		for part := range strings.SplitSeq(rest, ",") {
			k, v, ok := strings.Cut(part, "=")
			k, v = strings.TrimSpace(k), strings.TrimSpace(v)
			if !ok || k == "" {
				return Spec{}, fmt.Errorf("net: model %q: setting %q is not key=value", s, part)
			}
			if _, twice := spec.Settings[k]; twice {
				return Spec{}, fmt.Errorf("net: model %q: setting %s is given twice", s, k)
			}
			spec.Settings[k] = v
		}
	}
	d, err := find(spec.Name)
	if err != nil {
		return Spec{}, err
	}
	if _, err := d.read(spec.Settings); err != nil {
		return Spec{}, err
	}
	return spec, nil
}

// String is the spec as Parse reads it, settings in alphabetical order.
func (s Spec) String() string {
	var b strings.Builder
	b.WriteString(s.Name)
	sep := ":"
	for _, k := range slices.Sorted(maps.Keys(s.Settings)) {
		b.WriteString(sep + k + "=" + s.Settings[k])
		sep = ","
	}
	return b.String()
}

// Names lists the models, in alphabetical order.
func Names() []string { return slices.Sorted(maps.Keys(registry)) }

// About says in one line what a model is and which settings it has, with their
// defaults; empty for an unknown name.
func About(name string) string {
	d, ok := registry[name]
	if !ok {
		return ""
	}
	var keys []string
	for _, k := range d.settings {
		keys = append(keys, fmt.Sprintf("%s=%s (%s)", k.key, format(k.value), k.about))
	}
	if len(keys) == 0 {
		return d.about
	}
	return d.about + "; " + strings.Join(keys, ", ")
}

// Describe says what the spec builds: name, all settings, parameters, input.
func Describe(spec Spec) (string, error) {
	m, err := declare(spec, false)
	if err != nil {
		return "", err
	}
	return m.describe(), nil
}

// Full is the name of the model that s asks for, with all its settings: the beginning of what Describe says.
func Full(s string) (string, error) {
	spec, err := Parse(s)
	if err != nil {
		return "", err
	}
	d, err := find(spec.Name)
	if err != nil {
		return "", err
	}
	set, err := d.read(spec.Settings)
	if err != nil {
		return "", err
	}
	return d.full(set), nil
}

// full is the name with settings.
func (d *definition) full(set settings) string {
	b := d.name
	sep := ":"
	for _, k := range slices.Sorted(maps.Keys(set)) {
		b += sep + k + "=" + format(set[k])
		sep = ","
	}
	return b
}

// Count is how many parameters the spec builds: elements of the flat vector.
func Count(spec Spec) (int, error) {
	m, err := declare(spec, false)
	if err != nil {
		return 0, err
	}
	n := 0
	for _, t := range m.layout {
		n += t.Len()
	}
	return n, nil
}

// Hash identifies what a spec builds: two workers with the same hash hold the same
// initial parameters in the same layout. It covers the name, all settings with
// their defaults, the input, the layout and the seed, not the batch size.
// It is 32 hexadecimal digits.
func Hash(spec Spec) (string, error) {
	m, err := declare(spec, false)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "star model 1\n%s\n", m.def.name)
	for _, k := range slices.Sorted(maps.Keys(m.set)) {
		fmt.Fprintf(h, "%s=%s\n", k, format(m.set[k]))
	}
	fmt.Fprintf(h, "input %v %d %t\nseed %d\n", spec.Input.Shape, spec.Input.Classes, spec.Input.Tokens, spec.Seed)
	for _, t := range m.layout {
		fmt.Fprintf(h, "%s %v %d\n", t.Name, t.Shape, t.Offset)
	}
	return hex.EncodeToString(h.Sum(nil)[:16]), nil
}

// A definition is a model that can be built by name.
type definition struct {
	name     string
	about    string
	settings []setting

	// fits says why the model cannot take this input; nil if it can.
	fits func(in train.Input) error

	// layers makes the model: the last layer's result has Vocab columns, the
	// scores of the classes.
	layers func(b *Builder, s settings) ([]Layer, error)
}

// A setting is one key of a model. The type of value (int, float64, bool, []int)
// is the type of the setting.
type setting struct {
	key      string
	value    any // default
	about    string
	min, max float64 // of a number, and of each number of a list
}

// settings are the values of all settings of a definition.
type settings map[string]any

func (s settings) int(key string) int       { return s[key].(int) }
func (s settings) float(key string) float64 { return s[key].(float64) }
func (s settings) bool(key string) bool     { return s[key].(bool) }
func (s settings) ints(key string) []int    { return s[key].([]int) }

var registry = map[string]*definition{}

// register makes a model known. It is called by init functions alone.
func register(d definition) {
	if _, ok := registry[d.name]; ok {
		panic("net: model " + d.name + " is registered twice")
	}
	registry[d.name] = &d
}

func find(name string) (*definition, error) {
	if d, ok := registry[name]; ok {
		return d, nil
	}
	return nil, fmt.Errorf("net: unknown model %q; there are %s", name, strings.Join(Names(), ", "))
}

// read checks settings and adds the defaults.
func (d *definition) read(text map[string]string) (settings, error) {
	s := settings{}
	var keys []string
	for _, k := range d.settings {
		s[k.key] = k.value
		keys = append(keys, k.key)
	}
	for _, key := range slices.Sorted(maps.Keys(text)) {
		i := slices.Index(keys, key)
		if i < 0 {
			have := "it has none"
			if len(keys) > 0 {
				sort.Strings(keys)
				have = "it has " + strings.Join(keys, ", ")
			}
			return nil, fmt.Errorf("net: model %s has no setting %q; %s", d.name, key, have)
		}
		v, err := d.settings[i].parse(text[key])
		if err != nil {
			return nil, fmt.Errorf("net: model %s: setting %s=%q: %w", d.name, key, text[key], err)
		}
		s[key] = v
	}
	return s, nil
}

func (k setting) parse(text string) (any, error) {
	inside := func(v float64) error {
		if !(v >= k.min && v <= k.max) {
			return fmt.Errorf("must lie between %v and %v (%s)", k.min, k.max, k.about)
		}
		return nil
	}
	switch k.value.(type) {
	case int:
		v, err := strconv.Atoi(text)
		if err != nil {
			return nil, fmt.Errorf("must be a whole number (%s)", k.about)
		}
		return v, inside(float64(v))
	case float64:
		v, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("must be a number (%s)", k.about)
		}
		return v, inside(v)
	case bool:
		v, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("must be true or false (%s)", k.about)
		}
		return v, nil
	case []int:
		var vs []int
		for part := range strings.SplitSeq(text, "-") {
			v, err := strconv.Atoi(part)
			if err != nil {
				return nil, fmt.Errorf("must be whole numbers joined by hyphens, such as 256-128 (%s)", k.about)
			}
			if err := inside(float64(v)); err != nil {
				return nil, err
			}
			vs = append(vs, v)
		}
		return vs, nil
	}
	panic("net: setting " + k.key + " has a default of no known type")
}

// format is a setting's value as parse reads it.
func format(v any) string {
	if vs, ok := v.([]int); ok {
		s := make([]string, len(vs))
		for i, v := range vs {
			s[i] = strconv.Itoa(v)
		}
		return strings.Join(s, "-")
	}
	return fmt.Sprint(v)
}

// build makes the layers of one graph.
func (d *definition) build(b *Builder, s settings) ([]Layer, error) {
	layers, err := d.layers(b, s)
	if err != nil {
		return nil, err
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("net: model %s has no layers", d.name)
	}
	last := layers[len(layers)-1].Out()
	if last[len(last)-1] != b.Vocab {
		return nil, fmt.Errorf("net: model %s ends in %v, not in %d scores", d.name, last, b.Vocab)
	}
	return layers, nil
}
