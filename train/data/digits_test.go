package data

import (
	"bytes"
	"hash/crc32"
	"math"
	"sync"
	"testing"

	"star/train"
)

// open opens a specification that must be right.
func open(t testing.TB, specification string) (trainPart, testPart Dataset) {
	t.Helper()
	trainPart, testPart, err := Open(specification, Options{})
	if err != nil {
		t.Fatal(err)
	}
	return trainPart, testPart
}

// The images are part of the definition of the data set: the same bytes on
// every machine and in every version. A different sum on another processor
// means that rendering is not integer arithmetic any more.
func TestDigitsGolden(t *testing.T) {
	for _, c := range []struct {
		spec        string
		train, test uint32
	}{
		{"digits", 0x3ce94172, 0xe71656bb},
		{"digits:seed=2", 0x7c5ae37d, 0xa98e9c16},
	} {
		trainPart, testPart := open(t, c.spec)
		sum := func(d Dataset) uint32 {
			h := crc32.NewIEEE()
			var own [digitBytes]byte
			for i := range 300 {
				h.Write(d.(*digits).image(i, &own))
				h.Write([]byte{byte(d.(*digits).label(i))})
			}
			return h.Sum32()
		}
		if got := sum(trainPart); got != c.train {
			t.Errorf("%s: 300 training images have the checksum %#08x, want %#08x", c.spec, got, c.train)
		}
		if got := sum(testPart); got != c.test {
			t.Errorf("%s: 300 test images have the checksum %#08x, want %#08x", c.spec, got, c.test)
		}
	}
}

func TestDigitsAreBalanced(t *testing.T) {
	d, _ := open(t, "digits:n=1000")
	var b train.Batch
	if err := d.Fill(&b, upTo(1000)); err != nil {
		t.Fatal(err)
	}
	var counts [10]int
	for _, y := range b.Y {
		counts[y]++
	}
	for digit, c := range counts {
		if c != 100 {
			t.Errorf("digit %d comes %d times in 1000", digit, c)
		}
	}
	inOrder := true
	for i := range 10 {
		inOrder = inOrder && b.Y[i] == b.Y[i+10]
	}
	if inOrder {
		t.Error("blocks of ten have the digits in the same order")
	}
}

func TestDigitsAreScaled(t *testing.T) {
	d, _ := open(t, "digits:n=4000")
	var b train.Batch
	if err := d.Fill(&b, upTo(4000)); err != nil {
		t.Fatal(err)
	}
	var sum, squares float64
	for _, x := range b.X {
		sum += float64(x)
		squares += float64(x) * float64(x)
	}
	n := float64(len(b.X))
	if mean := sum / n; math.Abs(mean) > 0.01 {
		t.Errorf("mean %.4f, want 0 to 0.01", mean)
	}
	if std := math.Sqrt(squares / n); math.Abs(std-1) > 0.01 {
		t.Errorf("standard deviation %.4f, want 1 to 0.01", std)
	}
}

// No image of the test part is also one to train on, and every image shows
// something.
func TestDigitsDiffer(t *testing.T) {
	trainPart, testPart := open(t, "digits:n=3000,test=1000")
	seen := map[[digitBytes]byte]bool{}
	var own [digitBytes]byte
	for _, d := range []*digits{trainPart.(*digits), testPart.(*digits)} {
		for i := range d.n {
			image := d.image(i, &own)
			bright := 0
			for _, v := range image {
				if v > 80 {
					bright++
				}
			}
			if bright < 12 {
				t.Errorf("%s: sample %d has only %d bright pixels", d.name, i, bright)
			}
			key := [digitBytes]byte(image)
			if seen[key] {
				t.Errorf("%s: sample %d is there twice", d.name, i)
			}
			seen[key] = true
		}
	}
}

// An image is drawn once.
func TestDigitsAreKept(t *testing.T) {
	d := newDigits("digits/train", 10, 1)
	var own [digitBytes]byte
	for range 2 {
		if image := d.image(3, &own); &image[0] != &d.cache[3*digitBytes] {
			t.Error("the image is not the one in the cache")
		}
	}
}

// Goroutines that ask for the same images at the same time all get them whole.
func TestDigitsConcurrently(t *testing.T) {
	trainPart, _ := open(t, "digits:n=64")
	lone, _ := open(t, "digits:n=64")
	var want train.Batch
	if err := lone.Fill(&want, upTo(64)); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			var b train.Batch
			if err := trainPart.Fill(&b, upTo(64)); err != nil {
				t.Error(err)
				return
			}
			for i := range b.X {
				if b.X[i] != want.X[i] {
					t.Errorf("sample %d differs", i/digitBytes)
					return
				}
			}
		})
	}
	wg.Wait()
}

// The distance to a filled square is known: depth to the nearest side inside,
// Euclidean distance to side or corner outside.
func TestMeasureSquare(t *testing.T) {
	const lo, hi = 30 * finer * subpel, 60 * finer * subpel // cells 30 to 60
	d := measure([]edge{{lo, lo, hi, lo}, {hi, lo, hi, hi}, {hi, hi, lo, hi}, {lo, hi, lo, lo}})
	for _, c := range []struct {
		x, y int
		want float64 // cells, at the centre of cell x, y
	}{
		{35, 45, 5.5}, {31, 40, 1.5}, {45, 55, 4.5},
		{25, 45, -4.5}, {45, 64, -4.5}, {26, 25, -math.Hypot(3.5, 4.5)},
		{45, 45, reach - 0.25}, {2, 2, -reach},
	} {
		got := float64(d[c.y*field+c.x]) / unit
		if math.Abs(got-c.want) > 0.4 { // the field samples the outline twice per cell
			t.Errorf("distance at (%d, %d) is %.2f cells, want %.2f", c.x, c.y, got, c.want)
		}
	}
}

func TestGlyphsAreCentred(t *testing.T) {
	for face := range faces {
		for digit := range 10 {
			d := glyph(face, digit)
			var top, bottom, left, right = field, 0, field, 0
			for y := range field {
				for x := range field {
					if d[y*field+x] > 0 {
						top, bottom = min(top, y), max(bottom, y)
						left, right = min(left, x), max(right, x)
					}
				}
			}
			if h := bottom - top + 1; h < tall-2 || h > tall {
				t.Errorf("face %d, digit %d: %d cells tall, want %d", face, digit, h, tall)
			}
			if off := left + right - (field - 1); off < -2 || off > 2 {
				t.Errorf("face %d, digit %d: cells %d to %d are not centred in %d", face, digit, left, right, field)
			}
		}
	}
}

func TestFillReuses(t *testing.T) {
	d, _ := open(t, "digits:n=100")
	var b train.Batch
	indices := upTo(100)
	if err := d.Fill(&b, indices); err != nil {
		t.Fatal(err)
	}
	x := &b.X[0]
	if got := testing.AllocsPerRun(20, func() {
		if err := d.Fill(&b, indices); err != nil {
			t.Fatal(err)
		}
	}); got != 0 {
		t.Errorf("%v allocations per batch", got)
	}
	if x != &b.X[0] {
		t.Error("Fill left a slice that was large enough")
	}
	b.Tokens = []int32{1}
	if err := d.Fill(&b, indices[:3]); err != nil {
		t.Fatal(err)
	}
	if len(b.X) != 3*digitBytes || len(b.Y) != 3 || b.Samples != 3 || b.Tokens != nil {
		t.Errorf("batch of 3: %d features, %d labels, %d samples, tokens %v", len(b.X), len(b.Y), b.Samples, b.Tokens)
	}
}

func TestRenderDoesNotAllocate(t *testing.T) {
	d := newDigits("digits/train", 100, 1)
	var own [digitBytes]byte
	for i := range 100 {
		d.render(&own, i) // measures the glyphs
	}
	before := bytes.Clone(own[:])
	if got := testing.AllocsPerRun(20, func() { d.render(&own, 99) }); got != 0 {
		t.Errorf("%v allocations per image", got)
	}
	if !bytes.Equal(before, own[:]) {
		t.Error("the second picture of a sample differs from the first")
	}
}

func BenchmarkRender(b *testing.B) {
	d := newDigits("digits/train", 1000, 1)
	var own [digitBytes]byte
	for i := range 1000 {
		d.render(&own, i)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		d.render(&own, i%1000)
		i++
	}
}

// upTo is 0..n-1.
func upTo(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}
