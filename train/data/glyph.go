package data

import (
	"fmt"
	"math"
	"slices"
	"sync"

	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/gobolditalic"
	"golang.org/x/image/font/gofont/goitalic"
	"golang.org/x/image/font/gofont/gomono"
	"golang.org/x/image/font/gofont/gomonobolditalic"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

// faces are the fonts that digits are drawn with, by weight, slant and width.
var faces = [...][]byte{
	goregular.TTF, gobold.TTF, goitalic.TTF, gobolditalic.TTF, gomono.TTF, gomonobolditalic.TTF,
}

// A glyph is kept as a field of distances to its outline, from which it can be
// drawn at any scale, angle and thickness of stroke.
const (
	field  = 96 // cells on each side of the field
	tall   = 64 // cells from the top to the bottom of a digit
	reach  = 12 // cells; distances are cut off here
	unit   = 64 // distances are in 1/unit of a cell
	finer  = 2  // samples of the outline per cell, each way
	grid   = field * finer
	subpel = 256 // outline coordinates are in 1/subpel of a sample
)

// distances is the signed distance of each cell's centre to the outline,
// positive inside, in 1/unit cells.
type distances [field * field]int16

// glyphs computes each field when it is first used; 60 fields take 1 MB.
var glyphs [len(faces)][10]struct {
	once sync.Once
	d    distances
}

func glyph(face, digit int) *distances {
	g := &glyphs[face][digit]
	g.once.Do(func() { g.d = measure(outline(faces[face], digit)) })
	return &g.d
}

// edge is a straight piece of outline, in 1/subpel samples.
type edge struct{ x0, y0, x1, y1 int }

// outline is the contour of a digit, tall cells high and centred in the field.
// All its arithmetic is on integers: fused multiply-add, which some processors
// use for floating point and others do not, must not move a pixel. It panics
// on an error, because the fonts are part of the program.
func outline(ttf []byte, digit int) []edge {
	font, err := sfnt.Parse(ttf)
	if err != nil {
		panic(fmt.Sprintf("data: Go font: %v", err))
	}
	var b sfnt.Buffer
	id, err := font.GlyphIndex(&b, rune('0'+digit))
	if err != nil {
		panic(fmt.Sprintf("data: Go font, digit %d: %v", digit, err))
	}
	segments, err := font.LoadGlyph(&b, id, fixed.I(int(font.UnitsPerEm())), nil)
	if err != nil {
		panic(fmt.Sprintf("data: Go font, digit %d: %v", digit, err))
	}

	const pieces = 12 // straight pieces per curve
	var edges []edge
	var start, pen fixed.Point26_6
	line := func(to fixed.Point26_6) {
		edges = append(edges, edge{int(pen.X), int(pen.Y), int(to.X), int(to.Y)})
		pen = to
	}
	for _, s := range segments {
		switch s.Op {
		case sfnt.SegmentOpMoveTo:
			line(start)
			start, pen = s.Args[0], s.Args[0]
		case sfnt.SegmentOpLineTo:
			line(s.Args[0])
		case sfnt.SegmentOpQuadTo:
			p, q, r := pen, s.Args[0], s.Args[1]
			for i := 1; i <= pieces; i++ {
				t, u := fixed.Int26_6(i), fixed.Int26_6(pieces-i)
				line(fixed.Point26_6{
					X: (u*u*p.X + 2*t*u*q.X + t*t*r.X) / (pieces * pieces),
					Y: (u*u*p.Y + 2*t*u*q.Y + t*t*r.Y) / (pieces * pieces),
				})
			}
		default:
			panic("data: Go font with cubic curves")
		}
	}
	line(start)

	low, high := edge{math.MaxInt, math.MaxInt, 0, 0}, edge{math.MinInt, math.MinInt, 0, 0}
	for _, e := range edges[1:] { // the first one closes a contour that was never begun
		low.x0, low.y0 = min(low.x0, e.x0), min(low.y0, e.y0)
		high.x0, high.y0 = max(high.x0, e.x0), max(high.y0, e.y0)
	}
	height := high.y0 - low.y0
	place := func(v, lo, hi int) int {
		return (2*v-lo-hi)*tall*finer*subpel/(2*height) + grid*subpel/2
	}
	for i, e := range edges {
		edges[i] = edge{
			place(e.x0, low.x0, high.x0), place(e.y0, low.y0, high.y0),
			place(e.x1, low.x0, high.x0), place(e.y1, low.y0, high.y0),
		}
	}
	return edges[1:]
}

// measure fills the outline by its winding number and measures the distance of
// every cell to the nearest sample of the other kind.
func measure(edges []edge) (d distances) {
	type crossing struct{ x, turn int }
	inside := make([]bool, grid*grid)
	var crossings []crossing
	for y := range grid {
		centre := y*subpel + subpel/2
		crossings = crossings[:0]
		for _, e := range edges {
			turn := 1
			if e.y0 > e.y1 {
				e, turn = edge{e.x1, e.y1, e.x0, e.y0}, -1
			}
			if e.y0 <= centre && centre < e.y1 {
				crossings = append(crossings, crossing{e.x0 + (centre-e.y0)*(e.x1-e.x0)/(e.y1-e.y0), turn})
			}
		}
		slices.SortFunc(crossings, func(a, b crossing) int { return a.x - b.x })
		winding, next := 0, 0
		for x := range grid {
			for next < len(crossings) && crossings[next].x <= x*subpel+subpel/2 {
				winding += crossings[next].turn
				next++
			}
			inside[y*grid+x] = winding != 0
		}
	}

	// The nearest sample of the other kind: down each column first, then along
	// each row as far as the best distance so far.
	const far = reach * finer
	column := func(kind bool) []int {
		away := make([]int, grid*grid) // samples up or down to one that is not of the kind
		for x := range grid {
			run := far
			for y := range grid {
				run = min(run+1, far)
				if inside[y*grid+x] != kind {
					run = 0
				}
				away[y*grid+x] = run
			}
			run = far
			for y := grid - 1; y >= 0; y-- {
				run = min(run+1, far)
				if inside[y*grid+x] != kind {
					run = 0
				}
				away[y*grid+x] = min(away[y*grid+x], run)
			}
		}
		return away
	}
	depth, height := column(true), column(false)
	for y := range grid {
		for x := range grid {
			away, sign := height, -1
			if inside[y*grid+x] {
				away, sign = depth, 1
			}
			row := away[y*grid : (y+1)*grid]
			best := row[x] * row[x]
			for s := 1; s*s < best; s++ {
				if x-s >= 0 {
					best = min(best, s*s+row[x-s]*row[x-s])
				}
				if x+s < grid {
					best = min(best, s*s+row[x+s]*row[x+s])
				}
			}
			// Half a sample less: the outline runs between the two. A square root
			// is rounded correctly on every machine.
			distance := int(math.Round(math.Sqrt(float64(best))*unit)) - unit/2
			d[y/finer*field+x/finer] += int16(sign * distance / (finer * finer * finer))
		}
	}
	return d
}
