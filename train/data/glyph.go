package data

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// faces is how many fonts digits are drawn with, by weight, slant and width.
const faces = 6

// outlines are the contours of the digits of the Go fonts, a line for each digit of each font in turn: M x y
// begins a contour, L x y draws a line, Q x y x y a curve, in 1/64 of a unit of the font. TestOutlines -write
// makes it of the fonts, so that programs need not link them.
//
//go:embed outlines.txt
var outlines string

var outlineLines = sync.OnceValue(func() []string { return strings.Split(strings.TrimSuffix(outlines, "\n"), "\n") })

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
var glyphs [faces][10]struct {
	once sync.Once
	d    distances
}

func glyph(face, digit int) *distances {
	g := &glyphs[face][digit]
	g.once.Do(func() { g.d = measure(outline(outlineLines()[10*face+digit])) })
	return &g.d
}

// edge is a straight piece of outline, in 1/subpel samples.
type edge struct{ x0, y0, x1, y1 int }

// point is a place of an outline, in 1/64 of a unit of the font.
type point struct{ x, y int }

// outline is the contour of a digit, tall cells high and centred in the field.
// All its arithmetic is on integers: fused multiply-add, which some processors
// use for floating point and others do not, must not move a pixel. It panics
// on an error, because the outlines are part of the program.
func outline(line string) []edge {
	const pieces = 12 // straight pieces per curve
	var edges []edge
	var start, pen point
	draw := func(to point) {
		edges = append(edges, edge{pen.x, pen.y, to.x, to.y})
		pen = to
	}
	for text := strings.NewReader(line); text.Len() > 0; {
		var op string
		var q, r point
		_, err := fmt.Fscan(text, &op, &q.x, &q.y)
		if err == nil && op == "Q" {
			_, err = fmt.Fscan(text, &r.x, &r.y)
		}
		if err != nil {
			panic(fmt.Sprintf("data: outline of a digit: %v", err))
		}
		switch op {
		case "M":
			draw(start)
			start, pen = q, q
		case "L":
			draw(q)
		case "Q":
			p := pen
			for t := 1; t <= pieces; t++ {
				u := pieces - t
				draw(point{
					(u*u*p.x + 2*t*u*q.x + t*t*r.x) / (pieces * pieces),
					(u*u*p.y + 2*t*u*q.y + t*t*r.y) / (pieces * pieces),
				})
			}
		default:
			panic(fmt.Sprintf("data: outline of a digit: unknown operation %q", op))
		}
	}
	draw(start)

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
