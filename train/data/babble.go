package data

import (
	"bufio"
	"bytes"

	"star/train"
)

// maxBabble limits n, in characters.
const maxBabble = 10_000_000

// openBabble writes a text and takes it as characters: sentences of a small grammar over invented words, for
// language models where there is no corpus. The same n and seed give the same text on every machine.
func openBabble(sp *spec) (trainPart, testPart Dataset, err error) {
	n := sp.integer("n", 200_000, 1000, maxBabble)
	window := sp.integer("window", 64, 1, 400)
	stride := sp.integer("stride", window, 1, 1<<20)
	fraction := sp.fraction(0.1)
	seed := sp.seed()
	if err := sp.need(0, 0); err != nil {
		return nil, nil, err
	}
	b := babble(n, seed)
	c, err := parseText(&source{path: "babble", r: bufio.NewReader(bytes.NewReader(b)), limit: int64(len(b))}, fraction, 1024, characters)
	if err != nil {
		return nil, nil, err
	}
	if short := min(c.split, len(c.tokens)-c.split); short <= window {
		return nil, nil, badSpec("babble", "n=%d and test=%v leave a part of %d characters: want more than window=%d", n, fraction, short, window)
	}
	input := train.Input{Shape: []int{window}, Classes: len(c.vocabulary), Tokens: true}
	return &text{part{"babble/train", input}, c.tokens[:c.split], window, stride},
		&text{part{"babble/test", input}, c.tokens[c.split:], window, stride}, nil
}

// Kinds of words, and how many there are of each.
const (
	noun = iota
	verb
	adjective
	adverb
	preposition
	article
	kinds
)

var vocabularySize = [kinds]int{120, 60, 50, 20, 8, 4}

// sentences are the orders in which words may come; the first are the most frequent.
var sentences = [][]int{
	{article, noun, verb, article, noun},
	{article, adjective, noun, verb, article, noun},
	{article, noun, verb, preposition, article, noun},
	{article, noun, adverb, verb},
	{article, adjective, noun, adverb, verb, article, adjective, noun, preposition, article, noun},
}

// babble is n characters of text.
func babble(n int, seed uint64) []byte {
	var r dice
	r.Seed(mix(seed), mix(^seed))
	words := [kinds][]string{}
	for kind, size := range vocabularySize {
		for range size {
			words[kind] = append(words[kind], word(&r, kind))
		}
	}
	var b []byte
	for len(b) < n {
		for i, kind := range sentences[rare(&r, len(sentences))] {
			w := words[kind][rare(&r, len(words[kind]))]
			if i == 0 {
				b = append(b, w[0]-'a'+'A')
				w = w[1:]
			} else {
				b = append(b, ' ')
			}
			b = append(b, w...)
		}
		end := ". "
		if r.between(0, 7) == 0 {
			end = ".\n"
		}
		b = append(b, end...)
	}
	return b[:n]
}

// rare is a number below n; k comes about 1/(k+1) as often as 0.
func rare(r *dice, n int) int {
	for {
		if k := r.between(0, n-1); r.between(0, k) == 0 {
			return k
		}
	}
}

// word is an invented word of some syllables, which ends like the others of its kind.
func word(r *dice, kind int) string {
	const onsets, vowels = "bcdfghjklmnprstvwz", "aeiou"
	ends := [kinds]string{noun: "n", verb: "s", adjective: "l", adverb: "ly", preposition: "", article: "e"}
	syllables := 1 + r.between(0, 2)
	if kind >= preposition {
		syllables = 1
	}
	var b []byte
	for range syllables {
		b = append(b, onsets[r.between(0, len(onsets)-1)], vowels[r.between(0, len(vowels)-1)])
	}
	return string(b) + ends[kind]
}
