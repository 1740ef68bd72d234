package data

import (
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"star/train"
)

// What is generated is part of the definition of a data set: the same bytes on every machine and in every version.
func TestMadeGolden(t *testing.T) {
	for _, c := range []struct {
		spec        string
		train, test uint32
	}{
		{"shapes:n=200,test=50", 0x02a5093d, 0xa831dc00},
		{"shapes:n=200,test=50,seed=2", 0xafd3b2fe, 0x1633fe74},
	} {
		trainPart, testPart := open(t, c.spec)
		sum := func(d Dataset) uint32 {
			p := d.(*pixels)
			h := crc32.NewIEEE()
			h.Write(p.bytes)
			for _, l := range p.labels {
				h.Write([]byte{byte(l)})
			}
			return h.Sum32()
		}
		if got := sum(trainPart); got != c.train {
			t.Errorf("%s: to train on %#08x, want %#08x", c.spec, got, c.train)
		}
		if got := sum(testPart); got != c.test {
			t.Errorf("%s: to test on %#08x, want %#08x", c.spec, got, c.test)
		}
	}
	for seed, want := range map[uint64]uint32{1: 0xc151eff1, 2: 0x02144809} {
		if got := crc32.ChecksumIEEE(babble(5000, seed)); got != want {
			t.Errorf("babble of seed %d: %#08x, want %#08x", seed, got, want)
		}
	}
}

// Every figure is present, differs from all others, and leaves some ground: nothing but its form says which class it
// is.
func TestShapes(t *testing.T) {
	areas := map[string]int{}
	for class, in := range figures {
		var b strings.Builder
		area := 0
		for y := -64; y <= 64; y += 4 {
			for x := -64; x <= 64; x += 4 {
				if in(x, y) {
					area++
					b.WriteByte('#')
				} else {
					b.WriteByte('.')
				}
			}
		}
		if before, ok := areas[b.String()]; ok {
			t.Errorf("figures %d and %d are the same", before, class)
		}
		areas[b.String()] = class
		if area < 150 || area > 900 {
			t.Errorf("figure %d covers %d of 1089 points", class, area)
		}
	}
	trainPart, testPart := open(t, "shapes:n=100,test=20")
	if in := trainPart.Input(); !slices.Equal(in.Shape, []int{3, 32, 32}) || in.Classes != 10 {
		t.Errorf("%+v", in)
	}
	seen := map[string]bool{}
	for _, d := range []*pixels{trainPart.(*pixels), testPart.(*pixels)} {
		count := [10]int{}
		for i := range d.Len() {
			count[d.labels[i]]++
			image := string(d.bytes[i*shapesBytes:][:shapesBytes])
			if seen[image] {
				t.Errorf("%s: sample %d is there twice", d.name, i)
			}
			seen[image] = true
		}
		if slices.Min(count[:]) != slices.Max(count[:]) {
			t.Errorf("%s: classes come %v times", d.name, count)
		}
	}
}

// The text has its length, its windows do not overlap, and short words and letters can be learned: some characters are
// much more frequent.
func TestBabble(t *testing.T) {
	trainPart, testPart := open(t, "babble:n=20000,window=32")
	if a, b := trainPart.Len(), testPart.Len(); a != (18000-1)/32 || b != (2000-1)/32 {
		t.Errorf("%d and %d windows", a, b)
	}
	text := string(babble(20000, 1))
	if len(text) != 20000 || strings.Count(text, ". ")+strings.Count(text, ".\n") < 300 {
		t.Errorf("%d characters: %.200q", len(text), text)
	}
	for _, r := range text {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || strings.ContainsRune(" .\n", r)) {
			t.Fatalf("%q is in it", r)
		}
	}
	var b train.Batch
	if err := trainPart.Fill(&b, []int{0, 1}); err != nil || len(b.Tokens) != 64 || b.Tokens[1] != b.Y[0] {
		t.Errorf("%v: %v", err, b.Tokens)
	}
	if _, _, err := Open("babble:n=1000,window=400", Options{}); err == nil || !strings.Contains(err.Error(), "window=400") {
		t.Errorf("a part shorter than a window: %v", err)
	}
}
