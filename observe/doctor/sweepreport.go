package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
)

// Finding is what a sweep says of a host.
type Finding struct {
	Host   string  `json:"host"`
	Peer   string  `json:"peer,omitempty"` // of a link: the host at its other end
	Check  string  `json:"check"`
	Status Status  `json:"status"` // Fail: the host should not take part; Warn: a person should look
	Value  float64 `json:"value"`
	Unit   string  `json:"unit"`
	Others float64 `json:"others,omitempty"` // the median of the other hosts
	Last   float64 `json:"last,omitempty"`   // of this host at the last time
	Worse  float64 `json:"worse,omitempty"`  // how many times worse than Others or Last
	Detail string  `json:"detail"`
	Fix    string  `json:"fix"`
}

// SweepHost is a host of a sweep.
type SweepHost struct {
	Name      string             `json:"name"`
	Status    Status             `json:"status"` // the worst of its findings
	Processor string             `json:"processor,omitempty"`
	Cores     int                `json:"cores,omitempty"` // that its processes may use
	GPUs      int                `json:"gpus"`
	Values    map[string]float64 `json:"values"` // medians, in the units at the ends of the names
	Notes     []string           `json:"notes,omitempty"`
}

// SweepReport is the result of a sweep.
type SweepReport struct {
	Status   Status      `json:"status"`
	Hosts    []SweepHost `json:"hosts"`
	Findings []Finding   `json:"findings"`
	Seconds  float64     `json:"seconds"` // without the wait for the hosts
	Notes    []string    `json:"notes,omitempty"`
}

// add adds findings, the failures first.
func (r *SweepReport) add(found ...Finding) {
	r.Findings = append(r.Findings, found...)
	rank := map[Status]int{Fail: 0, Warn: 1}
	slices.SortStableFunc(r.Findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Status], rank[b.Status]), strings.Compare(a.Host, b.Host))
	})
}

// close sets each Status.
func (r *SweepReport) close() {
	r.Status = OK
	for i := range r.Hosts {
		h := &r.Hosts[i]
		h.Status = OK
		for _, f := range r.Findings {
			if f.Host == h.Name && (f.Status == Fail || h.Status == OK) {
				h.Status = f.Status
			}
		}
	}
	for _, f := range r.Findings {
		if f.Status == Fail || r.Status == OK {
			r.Status = f.Status
		}
	}
}

// Sick are the names of hosts with a failure.
func (r *SweepReport) Sick() (names []string) {
	for _, f := range r.Findings {
		if f.Status == Fail && !slices.Contains(names, f.Host) {
			names = append(names, f.Host)
		}
	}
	return names
}

// Failed reports whether a host has a failure.
func (r *SweepReport) Failed(host string) bool { return slices.Contains(r.Sick(), host) }

// Of is the part of a report about one host.
func (r *SweepReport) Of(host string) *SweepReport {
	part := &SweepReport{Status: OK, Seconds: r.Seconds, Notes: r.Notes, Findings: []Finding{}}
	for _, h := range r.Hosts {
		if h.Name == host {
			part.Hosts, part.Status = append(part.Hosts, h), h.Status
		}
	}
	for _, f := range r.Findings {
		if f.Host == host {
			part.Findings = append(part.Findings, f)
		}
	}
	return part
}

// columns of the table.
var columns = []struct{ key, head string }{
	{"compute_flops", "compute"}, {"core_flops", "slowest core"}, {"memory_Bps", "memory"}, {"write_Bps", "disk write"}, {"read_Bps", "disk read"},
	{"files_ps", "small reads"}, {"out_Bps", "link out"}, {"in_Bps", "link in"}, {"rtt_s", "round trip"},
}

// Print writes a table, and the findings below it with what to do.
func (r *SweepReport) Print(w io.Writer) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "host\t\tcores")
	for _, c := range columns {
		fmt.Fprint(t, "\t", c.head)
	}
	fmt.Fprint(t, "\tGPUs\n")
	for _, h := range r.Hosts {
		fmt.Fprintf(t, "%s\t%s\t%d", h.Name, h.Status, h.Cores)
		for _, c := range columns {
			text := "-"
			if v, ok := h.Values[c.key]; ok {
				text = measureOf(c.key).show(v)
			}
			fmt.Fprint(t, "\t", text)
		}
		fmt.Fprintf(t, "\t%d\n", h.GPUs)
	}
	t.Flush()
	if len(r.Findings) > 0 {
		b.WriteByte('\n')
	}
	name, check := 0, 0
	for _, f := range r.Findings {
		name, check = max(name, len(f.Host)), max(check, len(f.Check))
	}
	for _, f := range r.Findings {
		fmt.Fprintf(&b, "%-4s  %-*s  %-*s  %s\n      %s→ %s\n", f.Status, name, f.Host, check, f.Check, f.Detail, strings.Repeat(" ", name+check+4), f.Fix)
	}
	for _, n := range r.notes() {
		fmt.Fprintf(&b, "note  %s\n", n)
	}
	sick := "none is an outlier"
	if s := r.Sick(); len(s) > 0 {
		sick = Plural(len(s), "outlier") + ": " + list(s)
	}
	fmt.Fprintf(&b, "%s in %.1f s, %s\n", Plural(len(r.Hosts), "host"), r.Seconds, sick)
	_, err := io.WriteString(w, b.String())
	return err
}

// notes joins the notes of hosts that have the same one.
func (r *SweepReport) notes() []string {
	out := slices.Clone(r.Notes)
	of := map[string][]string{}
	var order []string
	for _, h := range r.Hosts {
		for _, n := range h.Notes {
			if of[n] == nil {
				order = append(order, n)
			}
			of[n] = append(of[n], h.Name)
		}
	}
	for _, n := range order {
		out = append(out, list(of[n])+": "+n)
	}
	return out
}

// WriteJSON writes the report as one JSON value.
func (r *SweepReport) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
