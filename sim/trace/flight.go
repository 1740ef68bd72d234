package trace

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"star/internal/unpack"
)

// Flight is what the flight recorder of PyTorch's process groups kept of one rank: the last collectives that it
// began. The fields of the records are those of torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 1 and 2.
type Flight struct {
	Name  string // of the file
	Rank  int    // −1: neither the record nor the file's name says it
	World int    // 0: it does not say

	calls []call // in the order in which they were begun
}

// call is one collective of all ranks. Times are in seconds.
type call struct {
	group   string
	seq     int64
	what    string  // operation, types and sizes
	created float64 // when the rank asked for it, by the host's clock
	ended   float64 // 0: not known
	took    float64 // by the GPU's clock; −1: not known
	done    bool
}

const (
	maxCalls = 100_000 // kept for one rank: the recorder keeps 2,000 by default
	maxRun   = 4096    // collectives of a step
)

// callKey is the same for all ranks of a collective.
type callKey struct {
	group string
	seq   int64
}

func (c call) key() callKey { return callKey{c.group, c.seq} }

// IsFlight says whether a file begins like a flight record: a pickle, or a JSON object with the fields of one.
func IsFlight(head []byte) bool {
	if len(head) > 1 && head[0] == 0x80 && head[1] <= 5 { // PROTO
		return true
	}
	if bytes.HasPrefix(head, []byte("(dp")) || bytes.HasPrefix(head, []byte("}q")) { // protocols 0 and 1
		return true
	}
	text := bytes.TrimSpace(head)
	return bytes.HasPrefix(text, []byte("{")) && (bytes.Contains(text, []byte(`"pg_config"`)) || bytes.Contains(text, []byte(`"collective_seq_id"`)))
}

// ReadFlight reads a flight record, plain or gzip, as pickle or JSON. It executes nothing in it.
// name is that of the file; the number at its end is the rank, as in nccl_trace_rank_3. Errors begin
// with name.
func ReadFlight(r io.Reader, name string) (*Flight, error) {
	fail := func(format string, a ...any) (*Flight, error) {
		return nil, corrupt{fmt.Sprintf("%s: %s", name, fmt.Sprintf(format, a...))}
	}
	br, err := unpack.Reader(r)
	if err != nil {
		return fail("%v", err)
	}
	v, err := flightTree(br)
	if err != nil {
		return fail("%v", err)
	}
	top, ok := v.(dict)
	if !ok {
		return fail("it is a %T, and not the dict of a flight record", v)
	}
	if version, _ := top["version"].(string); !strings.HasPrefix(version, "1.") && !strings.HasPrefix(version, "2.") {
		return fail("version %.20q of flight records; 1 and 2 are known", version)
	}
	entries, ok := items(top["entries"])
	if !ok {
		return fail("no entries: it is no flight record, or collectives were left out when it was written")
	}
	f := &Flight{Name: name, Rank: -1}
	if n, ok := number(top["rank"]); ok && n >= 0 && n < maxWorkers {
		f.Rank = int(n)
	} else if n := endNumber(name); n >= 0 {
		f.Rank = n
	}
	groups := f.groups(top["pg_config"])
	for i, e := range entries {
		c, of, err := newCall(e, groups)
		if err != nil {
			return fail("entry %d: %v", i, err)
		}
		switch n := len(f.calls); {
		case !of:
		case n > 0 && f.calls[n-1].key() == c.key(): // one group of several operations
			f.calls[n-1].ended, f.calls[n-1].done = c.ended, c.done
		default:
			f.calls = append(f.calls, c)
		}
	}
	if len(f.calls) == 0 {
		return fail("no collective of all ranks in %d entries", len(entries))
	}
	f.calls = f.calls[max(0, len(f.calls)-maxCalls):]
	return f, nil
}

// flightTree is what a file has, as a pickle has it.
func flightTree(br *bufio.Reader) (any, error) {
	if first, _ := br.Peek(1); len(first) == 0 || (first[0] != '{' && first[0] != ' ' && first[0] != '\n') {
		return unpickle(br)
	}
	d := json.NewDecoder(br)
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it is cut off")
		}
		return nil, err
	}
	return fromJSON(v), nil
}

// fromJSON has objects and numbers as unpickle has them. encoding/json bounds the depth.
func fromJSON(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k, x := range v {
			v[k] = fromJSON(x)
		}
		return dict(v)
	case []any:
		for i, x := range v {
			v[i] = fromJSON(x)
		}
		return tuple(v)
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		f, _ := v.Float64()
		return f
	}
	return v
}

// items are those of a list or a tuple.
func items(v any) ([]any, bool) {
	switch v := v.(type) {
	case *list:
		return v.items, true
	case tuple:
		return v, true
	}
	return nil, false
}

// number is a number, also one that is written as text.
func number(v any) (float64, bool) {
	switch v := v.(type) {
	case int64:
		return float64(v), true
	case float64:
		return v, v == v
	case string:
		f, err := strconv.ParseFloat(v, 64)
		return f, err == nil && f == f
	}
	return 0, false
}

var lastNumber = regexp.MustCompile(`(\d{1,5})(\.(pkl|pickle|json|gz|bin|dump))*$`)

// endNumber is the number at the end of a file's name, −1 without one.
func endNumber(name string) int {
	m := lastNumber.FindStringSubmatch(filepath.Base(name))
	if m == nil {
		return -1
	}
	n, _ := strconv.Atoi(m[1])
	return n
}

// groups are how many ranks each process group has, and sets the world: the largest one.
func (f *Flight) groups(config any) map[string]int {
	groups := map[string]int{}
	of, _ := config.(dict)
	for name, c := range of {
		d, _ := c.(dict)
		var ranks []int
		if text, _ := d["ranks"].(string); json.Unmarshal([]byte(text), &ranks) != nil {
			continue
		}
		groups[name] = len(ranks)
		f.World = max(f.World, len(ranks))
	}
	return groups
}

// newCall is an entry. False: it is not of all ranks, but between two, or of a group of some.
func newCall(v any, groups map[string]int) (c call, ok bool, err error) {
	e, ok := v.(dict)
	if !ok {
		return c, false, fmt.Errorf("a %T, want a dict", v)
	}
	if p2p, _ := e["is_p2p"].(bool); p2p {
		return c, false, nil
	}
	c = call{took: -1, group: "0"}
	if group, _ := items(e["process_group"]); len(group) > 0 {
		c.group, _ = group[0].(string)
	} else if n, ok := number(e["pg_id"]); ok {
		c.group = strconv.Itoa(int(n))
	}
	world := 0
	for _, n := range groups {
		world = max(world, n)
	}
	if n, known := groups[c.group]; known && n < world {
		return c, false, nil
	}
	seq, ok := number(e["collective_seq_id"])
	if !ok {
		seq, ok = number(e["seq_id"]) // version 1
	}
	created, at := number(e["time_created_ns"])
	if !ok || !at || !(seq >= 0 && seq < maxStep) || !(created > 0) || created > 1e19 {
		return c, false, fmt.Errorf("its collective_seq_id is %v and its time_created_ns %v: want numbers", e["collective_seq_id"], e["time_created_ns"])
	}
	c.seq, c.created = int64(seq), created/1e9
	if ended, ok := number(e["time_discovered_completed_ns"]); ok && ended >= created && ended < 1e19 {
		c.ended = ended / 1e9
	}
	if took, ok := number(e["duration_ms"]); ok && took >= 0 && took < 1e12 {
		c.took = took / 1e3
	}
	state, _ := e["state"].(string)
	retired, _ := e["retired"].(bool)
	c.done = state == "completed" || retired || c.ended > 0
	name, _ := e["profiling_name"].(string)
	c.what = fmt.Sprintf("%.80s%s", name, sizes(e["input_sizes"]))
	return c, true, nil
}

// sizes are the shapes of tensors, as text of a bounded length.
func sizes(v any) string {
	var b strings.Builder
	var add func(v any, depth int)
	add = func(v any, depth int) {
		if b.Len() > 200 || depth > 3 {
			return
		}
		if of, ok := items(v); ok {
			for _, x := range of {
				add(x, depth+1)
			}
			b.WriteByte(']')
		} else if n, ok := number(v); ok {
			fmt.Fprintf(&b, " %.0f", n)
		}
	}
	add(v, 0)
	return strings.TrimRight(b.String(), "]")
}

// FlightProfiles has the flight records of all ranks of a job as profiles, one for each in the same order, with
// the same steps. A step is the shortest run of collectives that comes again and again; it ends with the one
// behind which a rank takes longest to begin the next. Notices say what was left out and which rank is missing in
// a collective.
//
// How long a rank waited is the time from its call of a collective to the collective's end, unless
// it called another one before: then it had work to do. The end is what the record says, if it does.
// NCCL's end is only noticed now and then by a thread of PyTorch: if durations are recorded
// (TORCH_NCCL_ENABLE_TIMING=1), waiting is what a collective took longer on this rank than on the
// one that came last. Without any end, it is when the last rank called, by the clocks of the hosts.
func FlightProfiles(flights []*Flight) ([]*Profile, []string, error) {
	seen := map[int]*Flight{}
	for _, f := range flights {
		if o := seen[f.Rank]; o != nil {
			return nil, nil, corrupt{fmt.Sprintf("%s: rank %d is already in %s: want one flight record of each rank, with the rank at the end of its name", f.Name, f.Rank, o.Name)}
		}
		seen[f.Rank] = f
	}
	if n := flights[0].World; n > len(flights) {
		there := make([]bool, n)
		for _, f := range flights {
			if f.Rank >= 0 && f.Rank < n {
				there[f.Rank] = true
			}
		}
		return nil, nil, corrupt{fmt.Sprintf("%s: the job has %d ranks, and there is no record of rank %d: give one of each", flights[0].Name, n, missing(there))}
	}
	m := newMeeting(flights)
	notices := m.missing(flights)
	if len(m.keys) < 3 {
		return nil, notices, corrupt{fmt.Sprintf("%s: the ranks have %d collectives in common, want 3 and more: are the records of one job?", flights[0].Name, len(m.keys))}
	}
	ends, run, err := m.steps()
	if err != nil {
		return nil, notices, corrupt{fmt.Sprintf("%s: %v", flights[0].Name, err)}
	}
	if m.by == byClocks {
		text := "the records do not say how long collectives took: waiting ranks are found by the clocks of the hosts, which must be synchronised"
		if strings.HasPrefix(m.what[0], "nccl") {
			text += " (TORCH_NCCL_ENABLE_TIMING=1 has PyTorch record it)"
		}
		notices = append(notices, text)
	}
	var out []*Profile
	for r, f := range flights {
		p := &Profile{Rank: f.Rank, World: max(f.World, len(flights)), GPU: m.by == byDurations}
		for _, e := range ends {
			took, wait := m.end(r, e)-m.end(r, e-run), 0.0
			for i := e - run + 1; i <= e; i++ {
				wait += m.wait(r, i)
			}
			took = max(took, 1e-6)
			p.Steps = append(p.Steps, ProfiledStep{Took: took, Wait: min(wait, took)})
		}
		out = append(out, p)
	}
	return out, notices, nil
}

// clock is what distinguishes waiting from work.
type clock int

const (
	byEnds clock = iota
	byDurations
	byClocks
)

// meeting has the collectives that are in the records of all ranks.
type meeting struct {
	keys  []callKey // in the order of the first rank
	what  []string
	calls [][]call  // of each rank, for each key
	least []float64 // the shortest duration of each
	last  []float64 // when the last rank asked for each
	by    clock
}

func newMeeting(flights []*Flight) *meeting {
	m := &meeting{}
	by := make([]map[callKey]call, len(flights))
	for r, f := range flights {
		by[r] = make(map[callKey]call, len(f.calls))
		for _, c := range f.calls {
			by[r][c.key()] = c
		}
	}
	m.calls = make([][]call, len(flights))
	ended, timed, all := 0, 0, 0
next:
	for _, c := range flights[0].calls {
		for _, of := range by {
			if o, ok := of[c.key()]; !ok || o.what != c.what {
				continue next
			}
		}
		m.keys, m.what = append(m.keys, c.key()), append(m.what, c.what)
		least, last := by[0][c.key()].took, 0.0
		for r, of := range by {
			o := of[c.key()]
			m.calls[r] = append(m.calls[r], o)
			least, last = min(least, o.took), max(last, o.created)
			all++
			if o.took >= 0 {
				timed++
			}
			if o.ended > 0 && !strings.HasPrefix(o.what, "nccl") {
				ended++
			}
		}
		m.least, m.last = append(m.least, least), append(m.last, last)
	}
	switch {
	case 10*ended >= 9*all: // the last ones may be running
		m.by = byEnds
	case 10*timed >= 9*all:
		m.by = byDurations
	default:
		m.by = byClocks
	}
	return m
}

// end is when collective i ended for rank r.
func (m *meeting) end(r, i int) float64 {
	c := m.calls[r][i]
	switch {
	case m.by == byEnds && c.ended > 0:
		return c.ended
	case m.by == byDurations:
		return c.created
	}
	return m.last[i]
}

// wait is how long rank r waited in collective i.
func (m *meeting) wait(r, i int) float64 {
	c := m.calls[r][i]
	if m.by == byDurations {
		if c.took < 0 || m.least[i] < 0 {
			return 0
		}
		return c.took - m.least[i]
	}
	if end := m.end(r, i); i+1 == len(m.keys) || m.calls[r][i+1].created >= end {
		return max(0, end-c.created)
	}
	return 0
}

// steps are the indices of the last collectives of steps, each behind another step, and how many collectives a
// step has.
func (m *meeting) steps() (ends []int, run int, err error) {
	numbers, what := map[string]int{}, make([]int, len(m.what)) // texts as numbers: they are compared often
	for i, text := range m.what {
		if _, ok := numbers[text]; !ok {
			numbers[text] = len(numbers)
		}
		what[i] = numbers[text]
	}
	if run = repeats(what); run == 0 {
		return nil, 0, fmt.Errorf("no steps: its %d collectives do not repeat; a longer record has more (TORCH_FR_BUFFER_SIZE, before PyTorch 2.8 TORCH_NCCL_TRACE_BUFFER_SIZE)", len(what))
	}
	at := len(what) - run // of the last run that was as the one before
	for at > run && !slices.Equal(what[at:at+run], what[at-run:at]) {
		at--
	}
	step := m.phase(what, slices.Clone(what[at:at+run]))
	for i, after := 0, false; i+run <= len(what); {
		if !slices.Equal(what[i:i+run], step) {
			i, after = i+1, false
			continue
		}
		i += run
		if after {
			ends = append(ends, i-1)
		}
		after = true
	}
	if len(ends) == 0 {
		return nil, 0, fmt.Errorf("no two steps behind each other in %d collectives", len(what))
	}
	return ends, run, nil
}

// repeats is after how many three in four are the same again; 0: never.
func repeats(what []int) int {
	n := len(what)
	for p := 1; 3*p <= n && p <= maxRun; p++ {
		others := 0
		for i := p; i < n && 4*others <= n-p; i++ {
			if what[i] != what[i-p] {
				others++
			}
		}
		if 4*others <= n-p {
			return p
		}
	}
	return 0
}

// phase turns a step so that its last collective is the one behind which the first rank takes longest to ask for
// the next.
func (m *meeting) phase(what, step []int) []int {
	run := len(step)
	gaps := make([][]float64, run)
	for i := 0; i+run < len(what); {
		if !slices.Equal(what[i:i+run], step) {
			i++
			continue
		}
		for j := range step {
			gaps[j] = append(gaps[j], m.calls[0][i+j+1].created-m.calls[0][i+j].created)
		}
		i += run
	}
	last, longest := run-1, 0.0
	for j, of := range gaps {
		slices.Sort(of)
		if len(of) > 0 && middle(of) > longest {
			last, longest = j, middle(of)
		}
	}
	return append(slices.Clone(step[last+1:]), step[:last+1]...)
}

// missing says which ranks had not begun a collective in which others waited when the records were written.
func (m *meeting) missing(flights []*Flight) (out []string) {
	newest := map[string]call{}
	for _, f := range flights {
		for _, c := range f.calls {
			if o, ok := newest[c.group]; !ok || c.seq > o.seq {
				newest[c.group] = c
			}
		}
	}
	for group, c := range newest {
		var there, lack []string
		for _, f := range flights {
			last := int64(-1)
			for _, o := range f.calls {
				if o.group == group {
					last = max(last, o.seq)
				}
			}
			if last < c.seq {
				lack = append(lack, strconv.Itoa(f.Rank))
			} else {
				there = append(there, strconv.Itoa(f.Rank))
			}
		}
		if len(lack) > 0 && !c.done {
			out = append(out, fmt.Sprintf("rank %s had not begun %s, collective %d of group %s, in which rank %s was waiting when the records were written", strings.Join(lack, ", "), c.what, c.seq, group, strings.Join(there, ", ")))
		}
	}
	slices.Sort(out)
	return out
}
