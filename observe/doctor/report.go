package doctor

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// Status is how a check ended.
type Status string

const (
	OK   Status = "ok"   // nothing to do
	Warn Status = "warn" // works, but not well, or only perhaps
	Fail Status = "fail" // will not work
)

// Result is the outcome of one check.
type Result struct {
	Check  string `json:"check"`
	Status Status `json:"status"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"` // what to do; never empty unless Status is OK

	// Values are the measurements, in seconds, bytes, bytes per second; the unit
	// is the end of the name: rtt_s, memory_B, up_Bps.
	Values map[string]float64 `json:"values,omitempty"`
}

// Report is what the doctor found.
type Report struct {
	Host     string   `json:"host"`
	Version  string   `json:"version"`
	Protocol int      `json:"protocol"`
	Status   Status   `json:"status"` // the worst of the results
	Results  []Result `json:"results"`
}

// add appends results and keeps Status the worst.
func (r *Report) add(results ...Result) {
	for _, x := range results {
		r.Results = append(r.Results, x)
		if x.Status == Fail || x.Status == Warn && r.Status == OK {
			r.Status = x.Status
		}
	}
}

// ExitCode is 1 if any check failed, else 0. Warnings are not failures.
func (r *Report) ExitCode() int {
	if r.Status == Fail {
		return 1
	}
	return 0
}

// Print writes one line for each check, and the fix below it where there is one.
func (r *Report) Print(w io.Writer) error {
	width := 0
	for _, x := range r.Results {
		width = max(width, len(x.Check))
	}
	var b strings.Builder
	count := make(map[Status]int)
	for _, x := range r.Results {
		count[x.Status]++
		fmt.Fprintf(&b, "%-4s  %-*s  %s\n", x.Status, width, x.Check, x.Detail)
		if x.Fix != "" {
			fmt.Fprintf(&b, "      %-*s  → %s\n", width, "", x.Fix)
		}
	}
	fmt.Fprintf(&b, "%d ok, %s, %s on %s (%s, protocol %d)\n",
		count[OK], Plural(count[Warn], "warning"), Plural(count[Fail], "failure"), r.Host, r.Version, r.Protocol)
	_, err := io.WriteString(w, b.String())
	return err
}

// Plural counts things.
func Plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// WriteJSON writes the report as one JSON value.
func (r *Report) WriteJSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}
