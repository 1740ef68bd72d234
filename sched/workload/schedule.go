package workload

import (
	"bufio"
	"cmp"
	"encoding/xml"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"star/sched"
)

// Allocation is a period in which a job has some rows of a picture.
type Allocation struct {
	Job      *sched.Outcome
	GPUs     float64
	From, To float64 // s
	Rows     []int   // ascending
}

// Blocks returns the rows as pairs: the first row and the length of each consecutive block.
func (h *Allocation) Blocks() (blocks [][2]int) {
	for i := 0; i < len(h.Rows); {
		n := 1
		for i+n < len(h.Rows) && h.Rows[i+n] == h.Rows[i]+n {
			n++
		}
		blocks = append(blocks, [2]int{h.Rows[i], n})
		i += n
	}
	return blocks
}

// parts is how many rows a GPU has if jobs share GPUs: with two, three or four jobs each has whole rows.
const parts = 12

// Allocate assigns each job as many rows as it has GPUs, at all times: a job keeps its rows, gives back the last ones,
// and gets the first free ones. If jobs share GPUs, each GPU has several rows. Policies count GPUs or choose nodes; the
// rows do not show which. Jobs that still have rows keep them until the time until, or the last change. Allocations are
// in order of From.
func Allocate(out []sched.Outcome, until float64) (all []Allocation, each int) {
	type change struct {
		job *sched.Outcome
		sched.Step
		less bool
	}
	var changes []change
	each = 1
	for i := range out {
		had := 0.
		for _, s := range out[i].Steps {
			if s.GPUs != math.Trunc(s.GPUs) {
				each = parts
			}
			changes = append(changes, change{&out[i], s, s.GPUs < had})
			had = s.GPUs
		}
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		if c := cmp.Compare(a.At, b.At); c != 0 || a.less == b.less {
			return c
		}
		if a.less {
			return -1
		}
		return 1
	})
	var taken []bool
	now := map[*sched.Outcome]*Allocation{}
	for _, c := range changes {
		h := now[c.job]
		var has []int
		if h != nil {
			h.To = c.At
			all = append(all, *h)
			has = slices.Clone(h.Rows)
		}
		want := int(math.Round(c.GPUs * float64(each)))
		for len(has) > want {
			taken[has[len(has)-1]] = false
			has = has[:len(has)-1]
		}
		for r := 0; len(has) < want; r++ {
			if r == len(taken) {
				taken = append(taken, false)
			}
			if !taken[r] {
				taken[r] = true
				has = append(has, r)
			}
		}
		slices.Sort(has)
		delete(now, c.job)
		if want > 0 {
			now[c.job] = &Allocation{Job: c.job, GPUs: c.GPUs, From: c.At, Rows: has}
		}
		until = max(until, c.At)
	}
	for i := range out {
		if h := now[&out[i]]; h != nil {
			h.To = until
			all = append(all, *h)
		}
	}
	slices.SortStableFunc(all, func(a, b Allocation) int { return cmp.Compare(a.From, b.From) })
	return all, each
}

// MostBars is how many rectangles a picture has: a browser shows that many within a second or two.
const MostBars = 50000

// WriteSchedule streams which jobs had GPUs when, as SVG: time from left to right, a row per GPU, a colour and a title
// per job. The picture suits light and dark pages. If there are more than MostBars rectangles, it says so and shows the
// earliest.
func WriteSchedule(w io.Writer, title string, gpus int, out []sched.Outcome) error {
	all, each := Allocate(out, 0)
	first, last, lines, bars := never, 0., gpus*each, 0
	for i, h := range all {
		if bars += len(h.Blocks()); bars > MostBars {
			title += fmt.Sprintf(" (until %s h: there is more than %d rectangles can show)", strconv.FormatFloat(h.From/3600, 'g', 4, 64), MostBars)
			all = all[:i]
			break
		}
		first, last, lines = min(first, h.From), max(last, h.To), max(lines, slices.Max(h.Rows)+1)
	}
	if len(all) == 0 {
		first = 0
	}
	const left, top, width = 60., 40., 1200.
	row := min(480/float64(max(lines, 1)), 24/float64(each))
	height, scale := row*float64(lines), width/max(last-first, 1)
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %.0f %.0f" font-family="sans-serif" font-size="13">
<style>svg{background:#fff;color:#222}@media(prefers-color-scheme:dark){svg{background:#161616;color:#ddd}}text{fill:currentColor}rect:hover{stroke:currentColor}.axis{stroke:currentColor;opacity:.35}</style>
<text x="%.0f" y="22" font-size="16">%s</text>
`, left+width+30, top+height+50, left, escape(title))
	// hours between marks; at most twelve marks: 1, 2, 5, 10 …
	step := math.Pow(10, math.Ceil(math.Log10(max(last-first, 1)/3600/12)))
	for _, part := range []float64{5, 2} {
		if (last-first)/3600/step*part <= 12 {
			step /= part
			break
		}
	}
	for h := math.Ceil(first/3600/step) * step; h*3600 <= last; h += step {
		x := left + (h*3600-first)*scale
		fmt.Fprintf(b, `<line class="axis" x1="%.2[1]f" x2="%.2[1]f" y1="%[2]g" y2="%.2[3]f"/><text x="%.2[1]f" y="%.2[4]f" text-anchor="middle">%[5]s</text>`+"\n",
			x, top, top+height, top+height+18, strconv.FormatFloat(h, 'g', 4, 64))
	}
	fmt.Fprintf(b, `<text x="%g" y="%.2f" text-anchor="middle">time of the trace (h)</text><text x="%g" y="%g" text-anchor="end">GPU 0</text><text x="%g" y="%.2f" text-anchor="end">%d</text>`+"\n",
		left+width/2, top+height+38, left-6, top+12, left-6, top+height, lines/each-1)
	for _, h := range all {
		hash := fnv.New32a()
		hash.Write([]byte(h.Job.ID))
		fmt.Fprintf(b, `<g fill="hsl(%d,55%%,55%%)"><title>job %s: %s GPUs from %s s to %s s`, hash.Sum32()%360, escape(h.Job.ID), number(h.GPUs), number(h.From), number(h.To))
		if !math.IsInf(h.Job.Deadline, 1) {
			fmt.Fprintf(b, ", deadline %s s", number(h.Job.Deadline))
		}
		b.WriteString("</title>")
		for _, r := range h.Blocks() {
			fmt.Fprintf(b, `<rect x="%.2f" y="%.2f" width="%.2f" height="%.2f"/>`, left+(h.From-first)*scale, top+float64(r[0])*row, max((h.To-h.From)*scale, .3), float64(r[1])*row*.94)
		}
		b.WriteString("</g>\n")
	}
	b.WriteString("</svg>\n")
	return b.Flush()
}

func escape(text string) string {
	var b strings.Builder
	xml.EscapeText(&b, []byte(text))
	return b.String()
}
