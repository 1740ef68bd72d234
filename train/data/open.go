package data

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// DefaultMaxBytes limits what is read from one file, after decompression.
const DefaultMaxBytes = 4 << 30

// Options are the settings of Open that are not part of a specification. The
// zero value works.
type Options struct {
	// MaxBytes limits what is read from one file, after decompression. Zero
	// means DefaultMaxBytes.
	MaxBytes int64
}

// Format is one kind of data set, for lists and messages.
type Format struct {
	Name    string
	Usage   string   // the specification, with its optional parts in brackets
	Options []string // keys of its KEY=VALUE settings
	Summary string

	open func(s *spec) (train, test Dataset, err error)
}

// Formats lists what Open understands.
func Formats() []Format {
	return []Format{
		{"digits", "digits[:n=12000,test=2000,seed=1]", []string{"n", "test", "seed"}, "generated images of digits, 28x28; needs no file", openDigits},
		{"shapes", "shapes[:n=6000,test=1000,seed=1]", []string{"n", "test", "seed"}, "generated images of coloured figures, 3x32x32 as CIFAR's; needs no file", openShapes},
		{"babble", "babble[:n=200000,window=64,stride=WINDOW,test=0.1,seed=1]", []string{"n", "window", "stride", "test", "seed"}, "a generated text as characters; needs no file", openBabble},
		{"mnist", "mnist:DIR", nil, "MNIST, Fashion-MNIST: the four IDX files, plain or .gz", openIDX},
		{"idx", "idx:DIR or idx:IMAGES,LABELS[,TESTIMAGES,TESTLABELS][,test=0.1,seed=1]", []string{"test", "seed"}, "IDX files of bytes, plain or .gz", openIDX},
		{"cifar10", "cifar10:DIR", nil, "CIFAR-10, binary version", openCIFAR10},
		{"cifar100", "cifar100:DIR[,labels=fine|coarse]", []string{"labels"}, "CIFAR-100, binary version", openCIFAR100},
		{"chars", "chars:FILE[,window=64,stride=WINDOW,vocab=1024,test=0.1]", []string{"window", "stride", "vocab", "test"}, "a text in UTF-8 as characters", openChars},
		{"words", "words:FILE[,window=32,stride=WINDOW,vocab=10000,test=0.1]", []string{"window", "stride", "vocab", "test"}, "a text in UTF-8 as words", openWords},
		{"npy", "npy:X.npy,Y.npy[,TESTX.npy,TESTY.npy][,layout=nchw|nhwc,test=0.1,seed=1]", []string{"layout", "test", "seed"}, "NumPy arrays of samples and of labels", openNPY},
		{"npz", "npz:FILE[,x=KEY,y=KEY[,xtest=KEY,ytest=KEY]][,layout=nchw|nhwc,test=0.1,seed=1]", []string{"x", "y", "xtest", "ytest", "layout", "test", "seed"}, "an archive of NumPy arrays", openNPZ},
		{"csv", "csv:FILE[,TESTFILE][,label=COLUMN,header=auto|yes|no,sep=comma|semicolon|tab,norm=standard|none,test=0.1,seed=1]", []string{"label", "header", "sep", "norm", "test", "seed"}, "rows of numbers with a label", openCSV},
	}
}

// Open opens the data set that a specification (see the package comment) names
// and returns its part to train on and its part to test on. Errors are of
// ErrSpec, or an *Error of ErrMissing or ErrCorrupt.
func Open(specification string, opts Options) (train, test Dataset, err error) {
	name, arguments, _ := strings.Cut(specification, ":")
	formats := Formats()
	i := slices.IndexFunc(formats, func(f Format) bool { return f.Name == name })
	if i < 0 {
		var usages []string
		for _, f := range formats {
			usages = append(usages, f.Usage)
		}
		return nil, nil, badSpec(specification, "no format %q; there are: %s", name, strings.Join(usages, "  "))
	}
	s, err := parseSpec(specification, arguments, formats[i])
	if err != nil {
		return nil, nil, err
	}
	s.maxBytes = opts.MaxBytes
	if s.maxBytes <= 0 {
		s.maxBytes = DefaultMaxBytes
	}
	train, test, err = formats[i].open(s)
	if err == nil {
		err = s.err
	}
	if err != nil {
		return nil, nil, err
	}
	return train, test, nil
}

// Kind is a specification with all its options, in alphabetical order, and without paths, which differ from host
// to host: those of the same data are the same. Its defaults are those that Usage names.
func Kind(specification string) (string, error) {
	name, arguments, _ := strings.Cut(specification, ":")
	formats := Formats()
	i := slices.IndexFunc(formats, func(f Format) bool { return f.Name == name })
	if i < 0 {
		return "", badSpec(specification, "no format %q", name)
	}
	s, err := parseSpec(specification, arguments, formats[i])
	if err != nil {
		return "", err
	}
	kind, sep := name, ":"
	for _, key := range slices.Sorted(slices.Values(formats[i].Options)) {
		value, ok := s.options[key]
		if !ok {
			value = regexp.MustCompile(`\b` + key + `=([^,|\]]*)`).FindStringSubmatch(s.format.Usage)[1]
		}
		kind += sep + key + "=" + value
		sep = ","
	}
	return kind, nil
}

// spec is a parsed specification. Reading an option that does not parse sets
// err and returns the default, so that a format reads its options in one go
// and asks once.
type spec struct {
	text     string
	format   Format
	paths    []string
	options  map[string]string
	maxBytes int64
	err      error
}

// setting is an argument that is meant as an option and not as a path.
var setting = regexp.MustCompile(`^[a-z]+=`)

func parseSpec(text, arguments string, f Format) (*spec, error) {
	s := &spec{text: text, format: f, options: map[string]string{}}
	if arguments == "" {
		return s, nil
	}
	for arg := range strings.SplitSeq(arguments, ",") {
		switch {
		case arg == "":
			return nil, badSpec(text, "an empty argument; write %s", f.Usage)
		case setting.MatchString(arg):
			key, value, _ := strings.Cut(arg, "=")
			if !slices.Contains(f.Options, key) {
				return nil, badSpec(text, "%s has no option %q (a path that begins like this is written ./%s); write %s", f.Name, key, arg, f.Usage)
			}
			if _, twice := s.options[key]; twice {
				return nil, badSpec(text, "option %q is given twice", key)
			}
			s.options[key] = value
		default:
			s.paths = append(s.paths, arg)
		}
	}
	return s, nil
}

// fail notes the first error of the specification.
func (s *spec) fail(format string, args ...any) {
	if s.err == nil {
		s.err = badSpec(s.text, "%s; write %s", fmt.Sprintf(format, args...), s.format.Usage)
	}
}

// need fails unless there are lo to hi paths.
func (s *spec) need(lo, hi int) error {
	switch n := len(s.paths); {
	case s.err != nil:
	case n < lo:
		s.fail("%d of at least %d paths given", n, lo)
	case n > hi:
		s.fail("%d paths given, at most %d understood", n, hi)
	}
	return s.err
}

func (s *spec) integer(key string, otherwise, lo, hi int) int {
	text, ok := s.options[key]
	if !ok {
		return otherwise
	}
	v, err := strconv.Atoi(text)
	if err != nil || v < lo || v > hi {
		s.fail("%s=%s is not a whole number from %d to %d", key, text, lo, hi)
		return otherwise
	}
	return v
}

// seed reads the option "seed", 1 if absent.
func (s *spec) seed() uint64 {
	text, ok := s.options["seed"]
	if !ok {
		return 1
	}
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		s.fail("seed=%s is not a whole number from 0 to 2^64-1", text)
	}
	return v
}

// fraction reads the option "test", the share of samples to test on.
func (s *spec) fraction(otherwise float64) float64 {
	text, ok := s.options["test"]
	if !ok {
		return otherwise
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0 && v < 1) {
		s.fail("test=%s is not a fraction between 0 and 1", text)
		return otherwise
	}
	return v
}

// choice reads an option that is one of a few words; the first is the default.
func (s *spec) choice(key string, words ...string) string {
	text, ok := s.options[key]
	if !ok {
		return words[0]
	}
	if !slices.Contains(words, text) {
		s.fail("%s=%s is not one of %s", key, text, strings.Join(words, ", "))
		return words[0]
	}
	return text
}
