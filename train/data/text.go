package data

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"unicode"
	"unicode/utf8"

	"star/train"
)

// Unknown is the token, number 0, for all words that are not in the vocabulary.
const Unknown = "<unk>"

// text is a part of a corpus: windows of tokens, and the tokens that follow
// each of them.
type text struct {
	part
	tokens         []int32
	window, stride int
}

func (d *text) Len() int { return windows(len(d.tokens), d.window, d.stride) }

// windows is how many windows, each followed by one more token, n tokens hold.
func windows(n, window, stride int) int {
	if n <= window {
		return 0
	}
	return (n-1-window)/stride + 1
}

func (d *text) Fill(b *train.Batch, indices []int) error {
	n := d.Len()
	size := len(indices) * d.window
	b.Tokens, b.Y, b.X, b.Samples = grow(b.Tokens, size), grow(b.Y, size), nil, len(indices)
	for i, index := range indices {
		if uint(index) >= uint(n) {
			return d.outOfRange(index, n)
		}
		from := d.tokens[index*d.stride:]
		copy(b.Tokens[i*d.window:(i+1)*d.window], from)
		copy(b.Y[i*d.window:(i+1)*d.window], from[1:])
	}
	return nil
}

func openChars(sp *spec) (trainPart, testPart Dataset, err error) {
	return openText(sp, 64, 1024, characters)
}

func openWords(sp *spec) (trainPart, testPart Dataset, err error) {
	return openText(sp, 32, 10000, words)
}

// openText reads a corpus; cut says how a text falls into tokens.
func openText(sp *spec, window, vocabulary int, cut func(b []byte) (n int)) (trainPart, testPart Dataset, err error) {
	window = sp.integer("window", window, 1, 1<<20)
	stride := sp.integer("stride", window, 1, 1<<20)
	vocabulary = sp.integer("vocab", vocabulary, 1, maxClasses-1)
	fraction := sp.fraction(0.1)
	if err := sp.need(1, 1); err != nil {
		return nil, nil, err
	}
	s, err := openSource(sp.paths[0], "a text file in UTF-8", sp.maxBytes)
	if err != nil {
		return nil, nil, err
	}
	defer s.Close()
	c, err := parseText(s, fraction, vocabulary, cut)
	if err != nil {
		return nil, nil, err
	}
	if short := min(c.split, len(c.tokens)-c.split); short <= window {
		return nil, nil, corrupt(s.path, -1, fmt.Sprintf("more than window=%d tokens in each part", window), "%d tokens in all, %d in the smaller part", len(c.tokens), short)
	}
	input := train.Input{Shape: []int{window}, Classes: len(c.vocabulary), Tokens: true}
	return &text{part{sp.format.Name + "/train", input}, c.tokens[:c.split], window, stride},
		&text{part{sp.format.Name + "/test", input}, c.tokens[c.split:], window, stride}, nil
}

// corpus is a text as numbers: tokens[:split] is to train on, tokens[split:] to
// test on.
type corpus struct {
	tokens     []int32
	split      int
	vocabulary []string // by token; the first is Unknown
}

// parseText cuts a text into tokens and numbers them by falling frequency in
// the part to train on, equally frequent ones by their bytes. At most limit
// different tokens are kept apart.
func parseText(s *source, fraction float64, limit int, cut func([]byte) int) (corpus, error) {
	b, err := s.rest("text")
	if err != nil {
		return corpus{}, err
	}
	var c corpus
	type entry struct {
		token string
		first int32 // number by first appearance
		count int
	}
	var entries []entry
	known := map[string]int32{}
	for at := 0; at < len(b); {
		r, size := utf8.DecodeRune(b[at:])
		if r == utf8.RuneError && size == 1 {
			return corpus{}, corrupt(s.path, int64(at), "text in UTF-8", "the byte %#02x", b[at])
		}
		n := cut(b[at:])
		if n == 0 {
			at += size
			continue
		}
		number, ok := known[string(b[at:at+n])]
		if !ok {
			if len(entries) == math.MaxInt32 {
				return corpus{}, corrupt(s.path, int64(at), "fewer than 2^31 different tokens", "another one")
			}
			token := string(b[at : at+n])
			number = int32(len(entries))
			known[token] = number
			entries = append(entries, entry{token: token, first: number})
		}
		c.tokens = append(c.tokens, number)
		at += n
	}
	c.split = len(c.tokens) - int(math.Round(float64(len(c.tokens))*fraction))
	for _, number := range c.tokens[:c.split] {
		entries[number].count++
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(b.count, a.count), cmp.Compare(a.token, b.token))
	})
	c.vocabulary = []string{Unknown}
	final := make([]int32, len(entries)) // by first appearance; 0: unknown
	for _, e := range entries {
		if e.count == 0 || len(c.vocabulary) > limit {
			break
		}
		final[e.first] = int32(len(c.vocabulary))
		c.vocabulary = append(c.vocabulary, e.token)
	}
	for i, number := range c.tokens {
		c.tokens[i] = final[number]
	}
	return c, nil
}

// characters cuts a text into code points.
func characters(b []byte) int {
	_, n := utf8.DecodeRune(b)
	return n
}

// words cuts a text into words (letters, marks, digits, and apostrophes within), line
// ends and single other characters; 0 means that the character is white space.
func words(b []byte) int {
	r, n := utf8.DecodeRune(b)
	if r == '\n' {
		return n
	}
	if unicode.IsSpace(r) {
		return 0
	}
	if !inWord(r) {
		return n
	}
	for n < len(b) {
		r, size := utf8.DecodeRune(b[n:])
		if r == '\'' || r == '’' {
			next, _ := utf8.DecodeRune(b[n+size:])
			if !inWord(next) {
				break
			}
		} else if !inWord(r) {
			break
		}
		n += size
	}
	return n
}

func inWord(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r) || unicode.IsMark(r))
}
