package data

import "star/train"

// The images of shapes: three channels, as CIFAR has them.
const (
	shapesSide  = 32
	shapesPlane = shapesSide * shapesSide
	shapesBytes = 3 * shapesPlane
)

// maxShapes limits n and test: images are drawn when the data set is opened.
const maxShapes = 100_000

// openShapes draws coloured figures on coloured grounds: data of CIFAR's form that needs no file.
func openShapes(s *spec) (trainPart, testPart Dataset, err error) {
	n := s.integer("n", 6000, 1, maxShapes)
	test := s.integer("test", 1000, 1, maxShapes)
	seed := s.seed()
	if err := s.need(0, 0); err != nil {
		return nil, nil, err
	}
	trained := newShapes("shapes/train", n, mix(seed))
	trained.scale = newScale(trained.bytes, trained.input.Shape, trained.rows)
	tested := newShapes("shapes/test", test, mix(^mix(seed)))
	tested.scale = trained.scale
	return trained, tested, nil
}

func newShapes(name string, n int, stream uint64) *pixels {
	p := &pixels{
		part: part{name, train.Input{Shape: []int{3, shapesSide, shapesSide}, Classes: len(figures)}},
		rows: rows{n: n}, bytes: make([]byte, n*shapesBytes), labels: make([]int32, n),
	}
	for i := range n {
		block := NewPermutation(stream, int64(i/len(figures)), len(figures)) // each block has every class once
		p.labels[i] = int32(block.At(i % len(figures)))
		drawShape(p.bytes[i*shapesBytes:][:shapesBytes], int(p.labels[i]), stream, i)
	}
	return p
}

// figures say whether a point lies in a class's figure, which is within 64 of 0 each way.
var figures = [10]func(x, y int) bool{
	func(x, y int) bool { return x*x+y*y <= 64*64 },                                          // disc
	func(x, y int) bool { d := x*x + y*y; return d <= 64*64 && d >= 36*36 },                  // ring
	func(x, y int) bool { return far(x, y) <= 56 },                                           // square
	func(x, y int) bool { d := far(x, y); return d <= 60 && d >= 34 },                        // frame
	func(x, y int) bool { return y <= 56 && 2*max(x, -x) <= y+64 },                           // triangle
	func(x, y int) bool { return y >= -56 && 2*max(x, -x) <= 64-y },                          // on its tip
	func(x, y int) bool { return far(x, y) <= 64 && (max(x, -x) <= 18 || max(y, -y) <= 18) }, // upright cross
	func(x, y int) bool { return far(x, y) <= 60 && (max(x-y, y-x) <= 24 || max(x+y, -x-y) <= 24) },
	func(x, y int) bool { return far(x, y) <= 60 && (y+64)/24%2 == 0 }, // bars, lying
	func(x, y int) bool { return far(x, y) <= 60 && (x+64)/24%2 == 0 }, // bars, standing
}

// far is the distance from 0 along the further axis.
func far(x, y int) int { return max(x, -x, y, -y) }

// What can happen to a figure.
const (
	shapeLeast, shapeMost = 9, 13 // half of its side, in pixels
	shapeTilt             = 20    // most shear, in 1/64
	shapeBright           = 120   // least of each of its colours
	shapeDark             = 130   // most of each of the ground's
	shapeGrain            = 40    // most noise of a pixel, either way
	shapeFade             = 60    // most change of the ground from corner to corner, either way
)

// drawShape draws a sample, which depends on its class, the stream and the index alone, with integers only, so
// that every machine draws the same bytes.
func drawShape(dst []byte, class int, stream uint64, index int) {
	var r dice
	r.Seed(stream, mix(uint64(index)))
	half := r.between(shapeLeast, shapeMost)
	cx, cy := r.between(half, shapesSide-1-half), r.between(half, shapesSide-1-half)
	tilt := r.between(-shapeTilt, shapeTilt)
	var ink, ground, fade [3]int
	for c := range ink {
		ink[c], ground[c] = r.between(shapeBright, 255), r.between(0, shapeDark)
		fade[c] = r.between(-shapeFade, shapeFade)
	}
	grain := r.between(0, shapeGrain)
	for y := range shapesSide {
		for x := range shapesSide {
			u, v := (x-cx)*64/half, (y-cy)*64/half
			inside := figures[class](u+tilt*v/64, v)
			for c := range ink {
				value := ground[c] + fade[c]*(x+y-shapesSide)/(2*shapesSide)
				if inside {
					value = ink[c]
				}
				dst[c*shapesPlane+y*shapesSide+x] = byte(min(max(value+r.between(-grain, grain), 0), 255))
			}
		}
	}
}
