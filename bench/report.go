package bench

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Files of a folder that Report reads; bench/allreduce.sh writes them.
const (
	ReportConditions = "conditions.md"  // what it was measured on, Markdown
	ReportRows       = "allreduce.json" // rows of all sides in turns
	ReportPoll       = "poll.json"      // the same, our side with Poll; may be missing
	ReportCrowd      = "crowd.json"     // 4 and 8 ranks of ours; may be missing
	ReportSteps      = "step.json"      // of star bench step --arch allreduce; may be missing
)

// Report writes the results of all-reduce in dir as Markdown: times, how much faster than
// the best peer, processor time, steps of training, and where we are behind.
func Report(w io.Writer, dir string) error {
	read := func(name string) ([]Row, error) {
		rows, err := ReadRows(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name != ReportRows {
			return nil, nil
		}
		return rows, err
	}
	var lists [3][]Row
	for i, name := range []string{ReportRows, ReportPoll, ReportCrowd} {
		var err error
		if lists[i], err = read(name); err != nil {
			return err
		}
	}
	var steps struct {
		Exchange []ExchangeResult `json:"exchange"`
	}
	text, err := os.ReadFile(filepath.Join(dir, ReportSteps))
	if err == nil {
		err = json.Unmarshal(text, &steps)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("bench: %s: %w", ReportSteps, err)
	}
	conditions, err := os.ReadFile(filepath.Join(dir, ReportConditions))
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	r := &report{}
	r.printf("%s\n", strings.TrimSpace(string(conditions)))
	r.rows("Times", lists[0], "")
	if lists[1] != nil {
		r.rows("Polling", lists[1], ", `--poll`")
	}
	r.crowd(lists[2])
	r.steps(steps.Exchange)
	r.printf("\n### Where STAR is behind\n\n")
	if len(r.behind) == 0 {
		r.printf("Nowhere in these tables.\n")
	}
	for _, line := range r.behind {
		r.printf("- %s\n", line)
	}
	_, err = io.WriteString(w, r.b.String())
	return err
}

type report struct {
	b      strings.Builder
	behind []string
}

func (r *report) printf(format string, a ...any) { fmt.Fprintf(&r.b, format, a...) }

// link is what a row goes through, alike for us and peers.
func link(r Row) string {
	if r.Transport == "shm" || r.Transport == "unix" {
		return "one host"
	}
	return "TCP"
}

// rows writes tables of times, of ratios and of processor time.
func (r *report) rows(title string, rows []Row, note string) {
	type place struct {
		ranks int
		link  string
	}
	var places []place
	var sizes []int64
	for _, x := range rows {
		if p := (place{x.Ranks, link(x)}); !slices.Contains(places, p) {
			places = append(places, p)
		}
		if !slices.Contains(sizes, x.Bytes) {
			sizes = append(sizes, x.Bytes)
		}
	}
	slices.Sort(sizes)
	slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.ranks, b.ranks), cmp.Compare(a.link, b.link)) })
	head := func(first string) {
		r.printf("\n| ranks | link | %s |", first)
		for _, n := range sizes {
			r.printf(" %s |", sizeText(n))
		}
		r.printf("\n|---|---|---|%s\n", strings.Repeat("---:|", len(sizes)))
	}
	r.printf("\n### %s\n\nMedian time of one all-reduce, in µs.\n", title)
	head("")
	each := func(p place, line func(name string, at map[int64]Row)) {
		var names []string
		by := map[string]map[int64]Row{}
		for _, x := range rows {
			if x.Ranks != p.ranks || link(x) != p.link {
				continue
			}
			name := peerText(x.Algorithm)
			if x.Ours() {
				name = "STAR" + note
			}
			if by[name] == nil {
				by[name] = map[int64]Row{}
				names = append(names, name)
			}
			if old, ok := by[name][x.Bytes]; !ok || x.Median < old.Median {
				by[name][x.Bytes] = x
			}
		}
		for _, name := range names {
			line(name, by[name])
		}
	}
	cells := func(at map[int64]Row, f func(Row) string) {
		for _, n := range sizes {
			x, ok := at[n]
			if !ok {
				r.printf(" |")
				continue
			}
			r.printf(" %s |", f(x))
		}
		r.printf("\n")
	}
	for _, p := range places {
		each(p, func(name string, at map[int64]Row) {
			r.printf("| %d | %s | %s |", p.ranks, p.link, name)
			cells(at, func(x Row) string { return microText(x.Median) })
		})
	}
	r.printf("\nHow many times as fast as the best peer over the same kind of link (bold: what is aimed at, or more;\nbelow 64 KiB on one host nothing is).\n")
	head("")
	most := 0.0
	for _, p := range places {
		ours, peer := map[int64]Row{}, map[int64]Row{}
		each(p, func(name string, at map[int64]Row) {
			for n, x := range at {
				to := peer
				if x.Ours() {
					to, most = ours, max(most, x.Allocs)
				}
				if old, ok := to[n]; !ok || x.Median < old.Median {
					to[n] = x
				}
			}
		})
		if len(peer) == 0 || len(ours) == 0 {
			continue
		}
		r.printf("| %d | %s | |", p.ranks, p.link)
		cells(ours, func(x Row) string {
			best, ok := peer[x.Bytes]
			if !ok {
				return ""
			}
			ratio, want := best.Median/x.Median, aim(p.link, x.Bytes, note != "")
			if ratio < want {
				r.behind = append(r.behind, fmt.Sprintf("%d ranks, %s%s, %s: %.2f times as fast as %s; aimed at: %.1f", p.ranks, p.link, note, sizeText(x.Bytes), ratio, peerText(best.Algorithm), want))
				return fmt.Sprintf("%.2f", ratio)
			}
			if want == 0 {
				return fmt.Sprintf("%.2f", ratio)
			}
			return fmt.Sprintf("**%.2f**", ratio)
		})
	}
	if note != "" {
		return
	}
	var long []int64
	for _, n := range sizes {
		if n >= 1<<20 {
			long = append(long, n)
		}
	}
	sizes = long
	least := map[place]map[int64]float64{} // of peers
	for _, x := range rows {
		p := place{x.Ranks, link(x)}
		if least[p] == nil {
			least[p] = map[int64]float64{}
		}
		if old := least[p][x.Bytes]; !x.Ours() && (old == 0 || x.CPU < old) {
			least[p][x.Bytes] = x.CPU
		}
	}
	r.printf("\nProcessor time of all ranks, in seconds for each 10⁹ bytes of the vector. Heap allocations of STAR, at most: %.3g for each operation.\n", most)
	head("")
	for _, p := range places {
		each(p, func(name string, at map[int64]Row) {
			r.printf("| %d | %s | %s |", p.ranks, p.link, name)
			cells(at, func(x Row) string {
				least := least[p][x.Bytes]
				if name == "STAR" && least > 0 && x.CPU > least {
					r.behind = append(r.behind, fmt.Sprintf("%d ranks, %s, %s: %.2f s of processor time for each 10⁹ bytes; the better peer %.2f", p.ranks, p.link, sizeText(x.Bytes), x.CPU, least))
				}
				return fmt.Sprintf("%.2f", x.CPU)
			})
		})
	}
}

// aim is how many times as fast as the best peer we want to be.
func aim(link string, size int64, poll bool) float64 {
	switch {
	case poll && link == "TCP":
		return 1
	case link == "TCP" && size >= 1<<20:
		return 1.3
	case size >= 1<<20, link == "TCP" && size >= 64<<10:
		return 1
	case size >= 64<<10:
		return 0.7
	case link == "TCP":
		return 0.5
	}
	return 0 // nothing promised
}

// crowd writes what more ranks than processors lose.
func (r *report) crowd(rows []Row) {
	if len(rows) == 0 {
		return
	}
	r.printf("\n### More ranks than processors\n\nAggregate bandwidth: ranks · bus bandwidth, GB/s; and 8 ranks' over 4 ranks'.\n\n| link | vector | 4 ranks | 8 ranks | ratio |\n|---|---|---:|---:|---:|\n")
	for _, a := range rows {
		for _, b := range rows {
			if a.Ranks != 4 || b.Ranks != 8 || a.Bytes != b.Bytes || a.Transport != b.Transport {
				continue
			}
			four, eight := 4*a.BusBW, 8*b.BusBW
			r.printf("| %s | %s | %.2f | %.2f | %.2f |\n", a.Transport, sizeText(a.Bytes), four/1e9, eight/1e9, eight/four)
			if eight/four < 0.8 {
				r.behind = append(r.behind, fmt.Sprintf("8 ranks, %s, %s: %.2f times the aggregate bandwidth of 4 ranks; aimed at: 0.8", a.Transport, sizeText(a.Bytes), eight/four))
			}
		}
	}
}

// steps writes what training gains.
func (r *report) steps(rows []ExchangeResult) {
	if len(rows) == 0 {
		return
	}
	r.printf("\n### Steps of training\n\nTime of one step (forward, backward, exchange in buckets of up to 25 MB meanwhile, update) and samples per second of all ranks. Exposed: what is left of\nthe exchange when the computation has ended. Asking: what it costs to tell the process that has Gloo of a bucket, part of its times.\n")
	r.printf("\n| model | parameters | ranks | exchange | step | samples/s | exposed | processor time | asking | of Gloo's samples/s |\n|---|---:|---:|---|---:|---:|---:|---:|---:|---:|\n")
	for _, x := range rows {
		name, ratio, asking := "none", "", ""
		switch x.Exchange {
		case "star":
			name = "STAR, " + x.Transport
		case "gloo":
			name, asking = "Gloo, tcp", microText(x.Doorbell)+" µs"
		}
		if x.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", x.Ratio)
		}
		r.printf("| %s | %d | %d | %s | %.1f ms | %.0f | %.1f ms | %.1f ms | %s | %s |\n", x.Model, x.Params, x.Ranks, name, 1e3*x.Median, x.Rate, 1e3*x.Exposed, 1e3*x.CPU, asking, ratio)
		if x.Exchange == "star" && x.Ratio > 0 && x.Ratio < 1 {
			r.behind = append(r.behind, fmt.Sprintf("%s by %d ranks over %s: %.2f of the samples per second with Gloo; aimed at: 1.0", x.Model, x.Ranks, x.Transport, x.Ratio))
		}
	}
}

func peerText(name string) string {
	switch name {
	case "openmpi-tcp", "openmpi-shm":
		return "Open MPI"
	case "gloo":
		return "Gloo"
	}
	return name
}

func sizeText(n int64) string {
	for _, u := range []struct {
		n    int64
		name string
	}{{1 << 20, "MiB"}, {1e6, "MB"}, {1 << 10, "KiB"}} {
		if n >= u.n && n%u.n == 0 {
			return fmt.Sprintf("%d %s", n/u.n, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

// microText is a time in µs, with two or three digits that mean something.
func microText(s float64) string {
	us := 1e6 * s
	switch {
	case us < 10:
		return fmt.Sprintf("%.1f", us)
	case us < 1000:
		return fmt.Sprintf("%.0f", us)
	}
	text := fmt.Sprintf("%.0f", us)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
