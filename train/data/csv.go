package data

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"star/train"
)

// table is a CSV file as numbers: features row by row, and the label of each
// row as a number into names.
type table struct {
	columns  int // of features
	features []float64
	labels   []int32
	names    []string // in order of first appearance

	// numbers says of a file with header=auto that all of its first row are numbers but the label:
	// named, that it was a header.
	numbers, named bool
}

// csvRules say how a file is read.
type csvRules struct {
	comma  rune
	header string // auto, yes, no
	label  string // name or number of the column; empty: the last
}

func openCSV(sp *spec) (trainPart, testPart Dataset, err error) {
	fraction, seed, norm := sp.fraction(0.1), sp.seed(), sp.choice("norm", "standard", "none")
	commas := map[string]rune{"comma": ',', "semicolon": ';', "tab": '\t'}
	rules := csvRules{
		comma:  commas[sp.choice("sep", "comma", "semicolon", "tab")],
		header: sp.choice("header", "auto", "yes", "no"),
		label:  sp.options["label"],
	}
	if err := sp.need(1, 2); err != nil {
		return nil, nil, err
	}
	if _, ok := sp.options["test"]; ok && len(sp.paths) == 2 {
		sp.fail("test=%v has no effect beside a test file", fraction)
		return nil, nil, sp.err
	}
	var tables []*table
	for _, path := range sp.paths {
		t, err := readCSV(path, rules, sp.maxBytes)
		if err != nil {
			return nil, nil, err
		}
		// files of one data set are made alike
		if t.numbers && (len(tables) == 0 && t.misplaced() || len(tables) > 0 && tables[0].named) {
			t.dropFirst()
		}
		if len(t.labels) == 0 {
			return nil, nil, corrupt(path, -1, "rows of numbers", "none")
		}
		tables = append(tables, t)
	}
	first := tables[0]
	var names []string
	for _, t := range tables {
		names = append(names, t.names...)
	}
	number, count := numberClasses(names)
	for _, t := range tables {
		for i, y := range t.labels {
			t.labels[i] = number[t.names[y]]
		}
	}
	input := train.Input{Shape: []int{first.columns}, Classes: count}
	if len(tables) == 2 {
		if other := tables[1]; other.columns != first.columns {
			return nil, nil, corrupt(sp.paths[1], -1, fmt.Sprintf("%d columns of features, as in %s", first.columns, sp.paths[0]), "%d", other.columns)
		}
		all := rows{n: len(first.labels)}
		scaled, err := first.standardise(sp.paths, all, norm, first.features, tables[1].features)
		if err != nil {
			return nil, nil, err
		}
		return &dense{part{"csv/train", input}, all, scaled[0], first.labels},
			&dense{part{"csv/test", input}, rows{n: len(tables[1].labels)}, scaled[1], tables[1].labels}, nil
	}
	if len(first.labels) < 2 {
		return nil, nil, corrupt(sp.paths[0], -1, "at least two rows, one to train and one to test on", "%d", len(first.labels))
	}
	some, others := split(len(first.labels), fraction, seed)
	scaled, err := first.standardise(sp.paths, some, norm, first.features)
	if err != nil {
		return nil, nil, err
	}
	return &dense{part{"csv/train", input}, some, scaled[0], first.labels},
		&dense{part{"csv/test", input}, others, scaled[0], first.labels}, nil
}

func readCSV(path string, rules csvRules, maxBytes int64) (*table, error) {
	s, err := openSource(path, "a CSV file", maxBytes)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	return parseCSV(s, rules)
}

// parseCSV reads rows of numbers, one of them the label (RFC 4180, with a configurable separator).
func parseCSV(s *source, rules csvRules) (*table, error) {
	b, err := s.rest("CSV rows")
	if err != nil {
		return nil, err
	}
	b = bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")) // byte order mark
	shift := s.offset - int64(len(b))
	if line, at := wide(b, byte(rules.comma)); line > 0 {
		return nil, corrupt(s.path, shift+at, fmt.Sprintf("at most %d columns (is sep= right?)", maxColumns), "line %d: more", line)
	}
	r := csv.NewReader(bytes.NewReader(b))
	r.Comma = rules.comma
	r.ReuseRecord = true
	r.TrimLeadingSpace = rules.comma != '\t'

	t := &table{}
	known := map[string]int32{}
	label, line := -1, 0
	for first := true; ; first = false {
		begin := shift + r.InputOffset()
		record, err := r.Read()
		if err == io.EOF {
			break
		}
		if e, ok := errors.AsType[*csv.ParseError](err); ok {
			return nil, corrupt(s.path, begin, fmt.Sprintf("%d fields of CSV", max(t.columns+1, 2)), "line %d: %v", e.Line, e.Err)
		}
		if err != nil {
			return nil, s.failed(err, "CSV rows")
		}
		line, _ = r.FieldPos(0)
		if first {
			header, err := t.firstRow(record, rules, &label)
			if err != nil {
				return nil, corrupt(s.path, begin, err.Error(), "line %d: %.80q", line, record[:min(len(record), 20)])
			}
			if header {
				continue
			}
		}
		for i, field := range record {
			if i == label {
				continue
			}
			v, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
			if err != nil || !(math.Abs(v) <= math.MaxFloat32) {
				return nil, corrupt(s.path, begin, "a finite number", "line %d, column %d: %.40q", line, i+1, field)
			}
			t.features = append(t.features, v)
		}
		name := strings.TrimSpace(record[label])
		if name == "" {
			return nil, corrupt(s.path, begin, "a label", "line %d, column %d: nothing", line, label+1)
		}
		y, ok := known[name]
		if !ok {
			if len(t.names) == maxClasses {
				return nil, corrupt(s.path, begin, fmt.Sprintf("at most %d different labels (is label= the right column?)", maxClasses), "line %d: another", line)
			}
			name = strings.Clone(name)
			y = int32(len(t.names))
			known[name] = y
			t.names = append(t.names, name)
		}
		t.labels = append(t.labels, y)
	}
	return t, nil
}

// firstRow counts columns, finds that of the label and tells whether the row is
// a header. The error is what was expected.
func (t *table) firstRow(record []string, rules csvRules, label *int) (header bool, err error) {
	if len(record) < 2 {
		return false, errors.New("at least one column of features and one of labels (is sep= right?)")
	}
	t.columns = len(record) - 1
	named := -1
	for i, field := range record {
		if rules.label != "" && strings.TrimSpace(field) == rules.label && named < 0 {
			named = i
		}
	}
	number, notNumber := strconv.Atoi(rules.label)
	switch {
	case rules.label == "":
		*label = t.columns
	case notNumber != nil && (named < 0 || rules.header == "no"):
		return false, fmt.Errorf("a header with the column %q", rules.label)
	case notNumber != nil:
		*label = named
	case number >= 1 && number <= len(record):
		*label = number - 1
	case number < 0 && -number <= len(record):
		*label = len(record) + number
	default:
		return false, fmt.Errorf("a column %d, counted from 1 or, backwards, from -1", number)
	}
	if rules.header != "auto" {
		return rules.header == "yes", nil
	}
	if notNumber != nil && rules.label != "" {
		return true, nil
	}
	for i, field := range record {
		if i != *label && isName(field) {
			return true, nil
		}
	}
	t.numbers = isName(record[*label])
	return false, nil
}

// isName says whether a field of a first row can be the name of a column: it is no number, also none
// that is out of range, and it is text.
func isName(field string) bool {
	_, err := strconv.ParseFloat(strings.TrimSpace(field), 64)
	return err != nil && !errors.Is(err, strconv.ErrRange) && utf8.ValidString(field) && !strings.ContainsFunc(field, unicode.IsControl)
}

// misplaced says of a first row of numbers with a word in the column of labels whether it is a
// header (years, say, and "class"): the labels of all other rows are numbers, or they are words that
// recur, and that one does not.
func (t *table) misplaced() bool {
	rest := t.labels[1:]
	if len(rest) == 0 || slices.Contains(rest, t.labels[0]) {
		return false
	}
	numbers := !slices.ContainsFunc(t.names[1:], isName)
	return numbers || len(t.names)-1 < len(rest)
}

// dropFirst takes a header out that was read as a row.
func (t *table) dropFirst() {
	t.named = true
	t.features, t.labels = t.features[t.columns:], t.labels[1:]
	if !slices.Contains(t.labels, 0) { // no other row has its label
		t.names = t.names[1:]
		for i := range t.labels {
			t.labels[i]--
		}
	}
}

// maxColumns bounds what one line costs: a field of two bytes takes some 60 until it is a number.
const maxColumns = 1 << 20

// wide is the number of the first line with more columns than that, and where it begins; 0: none has.
func wide(b []byte, comma byte) (line int, at int64) {
	for line = 1; len(b) > 0; line++ {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			n = len(b)
		}
		if bytes.Count(b[:n], []byte{comma}) >= maxColumns {
			return line, at
		}
		b, at = b[n:], at+int64(n)
	}
	return 0, 0
}

// numberClasses numbers labels: by their value where all are whole numbers that
// are not negative, else by alphabet.
func numberClasses(names []string) (number map[string]int32, count int) {
	number = map[string]int32{}
	for _, name := range names {
		v, err := strconv.Atoi(name)
		if err != nil || v < 0 || v >= maxClasses {
			number = nil
			break
		}
		number[name] = int32(v)
		count = max(count, v+1)
	}
	if number != nil {
		return number, max(count, 2)
	}
	names = slices.Clone(names)
	slices.Sort(names)
	names = slices.Compact(names)
	number = map[string]int32{}
	for i, name := range names {
		number[name] = int32(i)
	}
	return number, max(len(names), 2)
}

// standardise gives each column mean 0 and variance 1 over the rows to train
// on, and applies the same to all the parts. A column without variance only has
// its mean taken away. With norm "none" the numbers stay as they are. parts are
// the features of the files at paths; a number that is too far from the others
// to be scaled is an error.
func (t *table) standardise(paths []string, r rows, norm string, parts ...[]float64) ([][]float32, error) {
	mean, std := make([]float64, t.columns), make([]float64, t.columns)
	for c := range std {
		std[c] = 1
	}
	if norm == "standard" {
		n := float64(r.len())
		for i := range r.len() {
			row, _ := r.at(i)
			for c, v := range t.features[row*t.columns : (row+1)*t.columns] {
				mean[c] += v / n
			}
		}
		squares := make([]float64, t.columns)
		for i := range r.len() {
			row, _ := r.at(i)
			for c, v := range t.features[row*t.columns : (row+1)*t.columns] {
				d := v - mean[c]
				squares[c] += float64(d * d) // conversion: no fused multiply-add, the same bits everywhere
			}
		}
		for c, s := range squares {
			if s > 0 {
				std[c] = math.Sqrt(s / n)
			}
		}
	}
	out := make([][]float32, len(parts))
	for p, values := range parts {
		out[p] = make([]float32, len(values))
		for i, v := range values {
			c := i % t.columns
			out[p][i] = float32((v - mean[c]) / std[c])
			if math.IsInf(float64(out[p][i]), 0) {
				return nil, corrupt(paths[p], -1, fmt.Sprintf("features that can be standardised (or use norm=none): feature %d has a deviation of %g", c+1, std[c]), "%g in row %d", v, i/t.columns+1)
			}
		}
	}
	return out, nil
}
