package watch

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"star"
	"star/runlog"
)

// A job hangs when no rank has finished a step for T, a rank has waited in one call for T, and each rank that it waits
// for does nothing that could end the wait (see atWork). T is ten median steps, at least 15 s.
const (
	hangSteps = 10
	busyTimes = 4   // T for which a rank that uses a processor or disks may make others wait
	firstBusy = 20  // the same before the first step, when programs load data and compile
	active    = 0.1 // processors, used or waited for
	activeIO  = 1e5 // bytes per second
	progress  = 0.8 // of T: a rank that has finished something since then makes progress
	answering = 10  // seconds: the age of a stack that is taken for that of now
)

// quietRank is a rank with its newest state.
type quietRank struct {
	State
	rank, pid int
	host      string
	at        time.Duration
}

// missing is a rank that others wait for.
type missing struct {
	rank   int
	why    string // a value of runlog.HangRank.Why
	where  string // the line of its script
	call   string // the call that it is in instead
	text   string // in words, without the rank
	frames []string
}

// stall is what find finds.
type stall struct {
	call    Call // of the most ranks
	waiting []int
	members int
	missing []missing
	differs string // how the calls of one number differ; empty: they do not
	line    string // where a waiting rank is
}

// away reports whether a rank cannot go on by itself.
func (s *quietRank) away() bool {
	return s.Process == processStopped || s.Process == processEnded || s.Process == processLost
}

// waits is the call in which a rank waits for others; nil if it is in its own code.
func (s *quietRank) waits() *Call {
	if s.away() {
		return nil
	}
	if n := len(s.Open); n > 0 {
		c := &s.Open[n-1]
		if c.Computing && !s.inEngine() || c.Kind == construction && !s.inConstructor() {
			return nil
		}
		return c
	}
	for i := range s.Flight {
		if c := s.Flight[i]; c.Open {
			c.Group, c.Age = "flight recorder, group "+c.Group, s.Still
			return &c
		}
	}
	if s.Answered > 0 && s.Answered < answering && len(s.Frames) > 0 && s.CPU < active && slices.ContainsFunc(waitingFiles, func(f string) bool { return strings.Contains(s.Frames[0], f) }) {
		return &Call{Group: "unknown", Kind: "a call of torch.distributed"} // without an age: it is never the one that others are missing in
	}
	return nil
}

// waitingFiles are files of PyTorch in which a rank waits for others, also in calls that are not recorded.
var waitingFiles = []string{"/torch/distributed/distributed_c10d.py:", "/torch/distributed/_functional_collectives.py:", "/_fully_shard/_fsdp_collectives.py:", "/_fully_shard/_fsdp_param_group.py:"}

// inEngine reports whether the training thread waits in the engine of autograd, below any code in Python. A backward
// pass in which not all gradients came, as with unused parameters, waits there for the exchange.
func (s *quietRank) inEngine() bool {
	return s.Answered > 0 && len(s.Frames) > 0 && strings.Contains(s.Frames[0], "/torch/autograd/") && s.CPU < active
}

// construction is the kind of the call that a constructor of DDP is.
const construction = "construction of DDP"

// inConstructor reports whether the training thread may wait in C++ that the constructor of DDP has called: it imports
// modules and looks at parameters, too.
func (s *quietRank) inConstructor() bool {
	return s.Answered == 0 || len(s.Frames) > 0 && (strings.Contains(s.Frames[0], "/torch/nn/parallel/distributed.py:") || strings.Contains(s.Frames[0], "/torch/distributed/utils.py:"))
}

// entered returns the call of a group that a rank has entered last; nil if it has entered none.
func (s *quietRank) entered(c *Call) *Call {
	for _, of := range [][]Call{s.Open, s.Entered} {
		for i := range of {
			if of[i].Group == c.Group && of[i].Number == c.Number {
				return &of[i]
			}
		}
	}
	for i := range s.Entered {
		if s.Entered[i].Group == c.Group {
			return &s.Entered[i]
		}
	}
	if group, ok := strings.CutPrefix(c.Group, "flight recorder, group "); ok {
		for i := len(s.Flight) - 1; i >= 0; i-- {
			if s.Flight[i].Group == group {
				return &s.Flight[i]
			}
		}
	}
	return nil
}

// lacks reports whether a rank has not entered a call, has entered another one in its place, or cannot take part in it.
func (s *quietRank) lacks(c *Call) (lacks, differs bool) {
	if s == nil {
		return true, false
	}
	e := s.entered(c)
	switch {
	case e == nil || e.Number < c.Number:
		return true, false
	case e.Number == c.Number && e.differs(*c):
		return true, true
	case s.Process == processStopped, s.Process == processLost:
		return true, false
	case e.Number == c.Number && e.Computing && !s.inEngine():
		return true, false
	}
	return false, false
}

// inside reports whether the stack has a frame of one of some files.
func (s *quietRank) inside(files ...string) bool {
	return slices.ContainsFunc(s.Frames, func(f string) bool {
		return slices.ContainsFunc(files, func(x string) bool { return strings.Contains(f, x) })
	})
}

// atWork reports whether a rank that others wait for in a call may still enter it: it is in a phase that the script
// has declared, has finished something meanwhile, or uses a processor or disks and has not done so for too long.
func (s *quietRank) atWork(waited, t float64, stepped bool) bool {
	if s == nil || s.away() {
		return false
	}
	if s.Phase != "" || s.Still < progress*t {
		return true
	}
	if s.CPU < active && s.IO < activeIO {
		return false
	}
	if s.inside("/torch/_dynamo/", "/torch/_inductor/", "/torch/serialization.py", "/torch/distributed/checkpoint/", "/safetensors/") {
		return true
	}
	if stepped {
		return waited < busyTimes*t
	}
	return waited < firstBusy*t
}

// find looks for a hang among the states of the ranks; nil: no hang. t is the time in seconds after which a wait
// counts, stepped whether the job has made a step.
func find(ranks []*quietRank, t float64, stepped bool) *stall {
	waits := make([]*Call, len(ranks))
	type key struct {
		group  string
		number int64
		kind   string
		detail string
	}
	in := map[key][]int{}
	age := map[key]float64{}
	for r, s := range ranks {
		if s == nil {
			continue
		}
		if waits[r] = s.waits(); waits[r] != nil {
			c := waits[r]
			k := key{c.Group, c.Number, c.Kind, c.Detail}
			if slices.Contains(uneven, c.Kind) {
				k.detail = ""
			}
			in[k] = append(in[k], r)
			age[k] = max(age[k], c.Age)
		}
	}
	keys := slices.SortedFunc(maps.Keys(in), func(a, b key) int { // that of the most ranks, then the oldest one
		return cmp.Or(cmp.Compare(len(in[b]), len(in[a])), cmp.Compare(age[b], age[a]), cmp.Compare(in[a][0], in[b][0]))
	})
	if !slices.ContainsFunc(keys, func(k key) bool { return age[k] >= t }) {
		return nil
	}
	for _, k := range keys {
		if age[k] < t/2 {
			continue
		}
		if s := findIn(ranks, waits, in[k], age[k], t, stepped); s != nil {
			return s
		}
	}
	return nil
}

// findIn looks for the ranks that those in one call wait for.
func findIn(ranks []*quietRank, waits []*Call, in []int, age, t float64, stepped bool) *stall {
	c := waits[in[0]]
	out := &stall{call: *c, waiting: in, line: ranks[in[0]].Line}
	members := groupOf(c, len(ranks))
	out.members = len(members)
	// A rank that is missing may itself wait in another call, for further ones: the last ones of this chain, which wait
	// in no call, are to be named.
	var direct, last []int
	odd := map[int]bool{}
	seen := map[int]bool{}
	visit := func(r int) {
		if !seen[r] {
			seen[r] = true
			direct = append(direct, r)
		}
	}
	for _, r := range members {
		if lacks, differs := ranks[r].lacks(c); lacks {
			visit(r)
			odd[r] = differs
		}
	}
	first := slices.Clone(direct)
	for i := 0; i < len(direct); i++ {
		r := direct[i]
		if ranks[r] == nil || waits[r] == nil {
			last = append(last, r)
			continue
		}
		if odd[r] {
			continue
		}
		for _, m := range groupOf(waits[r], len(ranks)) {
			if lacks, _ := ranks[m].lacks(waits[r]); lacks && m != r {
				visit(m)
			}
		}
	}
	if len(last) == 0 { // they wait for each other
		last = first
	}
	for _, r := range last {
		if !odd[r] && waits[r] == nil && ranks[r].atWork(age, t, stepped) {
			return nil
		}
		out.missing = append(out.missing, ranks[r].missing(r, waits[r], odd[r]))
		if e := (*Call)(nil); odd[r] {
			if e = ranks[r].entered(c); e.Kind != c.Kind {
				out.differs = "the ranks call in another order"
			} else if out.differs == "" {
				out.differs = "types or shapes differ"
			}
		}
	}
	// All are in it: it may just be long, and a constructor computes before it waits.
	if len(last) == 0 && (age < busyTimes*t || slices.ContainsFunc(in, func(r int) bool { return ranks[r].CPU >= active })) {
		return nil
	}
	out.number(ranks)
	return out
}

// groupOf are the ranks that take part in a call.
func groupOf(c *Call, world int) (out []int) {
	for _, r := range c.members() {
		if r < world {
			out = append(out, r)
		}
	}
	if out == nil {
		for r := range world {
			out = append(out, r)
		}
	}
	return out
}

// missing describes a rank that others wait for.
func (s *quietRank) missing(r int, waits *Call, differs bool) missing {
	m := missing{rank: r}
	if s == nil {
		m.why, m.text = "absent", "has not started: no process of it was seen"
		return m
	}
	process := fmt.Sprintf("process %d on %s", s.pid, s.host)
	answers := s.Answered > 0 && s.Answered < answering
	if answers {
		m.where, m.frames = s.Line, s.Frames
	}
	at := ""
	if m.where != "" {
		at = ", at " + m.where
	}
	switch {
	case s.Process == processStopped:
		m.why, m.text = "stopped", "is stopped by a signal ("+process+")"
		m.where, m.frames = "", nil
	case s.Process == processEnded:
		m.why, m.text = "ended", "has ended ("+process+")"
		m.where, m.frames = "", nil
	case s.Process == processLost:
		m.why, m.text = "silent", fmt.Sprintf("has sent nothing for %s (%s)", short(seconds(s.Still)), process)
	case differs && waits != nil:
		m.why, m.call, m.text = "differs", waits.name(), "is in "+waits.name()+at
	case waits != nil:
		m.why, m.call, m.text = "elsewhere", waits.name(), "waits in "+waits.name()+at
	case !answers:
		m.why, m.text = "silent", "does not answer: other code holds its interpreter ("+process+")"
		if s.Kernel != "" {
			m.text += ", the kernel has it in " + s.Kernel
		}
	case s.inside("/torch/utils/data/dataloader.py"):
		m.why, m.text = "loader", "waits for a worker of its DataLoader"+at
		if c := s.loader(); c != nil {
			m.text = fmt.Sprintf("waits for a worker of its DataLoader, process %d, which %s", c.PID, c.doing())
			if c.Line != "" {
				m.where = c.Line
			}
		} else if len(s.Children) == 0 && !s.inside("/torch/utils/data/_utils/fetch.py") {
			m.text += "; no worker says where it is"
		} else if s.inside("/torch/utils/data/_utils/fetch.py") { // it loads itself
			m.why, m.text = "own code", "is in "+s.Line
		}
	default:
		m.why, m.text = "own code", "is in "+s.Line
	}
	if s.Process == processDisk {
		m.text += ", and waits for a disk"
	}
	return m
}

// loader is the worker of a DataLoader that a rank waits for; nil if that is not known.
func (s *quietRank) loader() *Child {
	for _, process := range []string{processEnded, processStopped, processDisk, ""} {
		for i := range s.Children {
			if c := &s.Children[i]; c.Process == process && (process != "" || c.Line != "") {
				return c
			}
		}
	}
	return nil
}

func (c *Child) doing() string {
	switch {
	case c.Process == processStopped:
		return "is stopped by a signal"
	case c.Process == processEnded:
		return "has ended"
	case c.Process == processDisk && c.Line != "":
		return "waits for a disk in " + c.Line
	case c.Process == processDisk:
		return "waits for a disk"
	}
	return "is in " + c.Line
}

// number names a call of DDP, which C++ makes, as PyTorch's flight recorder does where it is on: by the first
// collective that a missing rank has not entered.
func (s *stall) number(ranks []*quietRank) {
	if !slices.Contains([]string{"gradients of DDP", "broadcast of buffers", construction}, s.call.Kind) {
		return
	}
	flight := func(r int) []Call {
		if ranks[r] == nil {
			return nil
		}
		return ranks[r].Flight
	}
	of := flight(s.waiting[0])
	if len(of) == 0 {
		return
	}
	group := of[len(of)-1].Group
	least := of[len(of)-1].Number - 1
	for _, m := range s.missing {
		for _, c := range flight(m.rank) {
			if c.Group == group && (m.rank != s.waiting[0]) {
				least = max(min(least, lastNumber(flight(m.rank), group)), 0)
			}
		}
	}
	for _, c := range of {
		if c.Group == group && c.Number == least+1 {
			s.call.Kind, s.call.Number, s.call.Detail = c.Kind, c.Number, strings.TrimSpace(c.Detail+" ("+s.call.Kind+")")
			return
		}
	}
}

func lastNumber(calls []Call, group string) (n int64) {
	for _, c := range calls {
		if c.Group == group {
			n = max(n, c.Number)
		}
	}
	return n
}

// String is the hang in one line.
func (s *stall) String() string {
	text := fmt.Sprintf("%d of %s in %s", len(s.waiting), count(s.members, "rank")+" "+verb(len(s.waiting), "waits", "wait"), s.call.name())
	if s.members == 1 {
		text = fmt.Sprintf("rank %d waits in %s", s.waiting[0], s.call.name())
	}
	if len(s.missing) == 0 {
		return text + "; all of them have entered it: the network or a library does not go on"
	}
	// ranks of one text together
	var texts []string
	of := map[string][]int{}
	for _, m := range s.missing {
		if of[m.text] == nil {
			texts = append(texts, m.text)
		}
		of[m.text] = append(of[m.text], m.rank)
	}
	for i, t := range texts {
		if i == 4 {
			text += fmt.Sprintf("; and %s more", count(len(s.missing)-i, "rank"))
			break
		}
		text += "; " + ranksText(of[t], t)
	}
	if s.differs != "" {
		text += ": " + s.differs
	}
	return text
}

// ranksText is a text of some ranks.
func ranksText(rs []int, text string) string {
	if len(rs) == 1 {
		return fmt.Sprintf("rank %d %s", rs[0], text)
	}
	for _, v := range [][2]string{{"is ", "are "}, {"has ", "have "}, {"waits ", "wait "}, {"does ", "do "}} {
		if rest, ok := strings.CutPrefix(text, v[0]); ok {
			text = v[1] + rest
			break
		}
	}
	return "ranks " + spans(rs) + " " + text
}

// spans are numbers as 0-3,8.
func spans(ns []int) string {
	var parts []string
	for i := 0; i < len(ns); {
		n := i + 1
		for n < len(ns) && ns[n] == ns[n-1]+1 {
			n++
		}
		switch n - i {
		case 1:
			parts = append(parts, fmt.Sprint(ns[i]))
		default:
			parts = append(parts, fmt.Sprintf("%d-%d", ns[i], ns[n-1]))
		}
		i = n
	}
	return strings.Join(parts, ",")
}

func verb(n int, one, more string) string {
	if n == 1 {
		return one
	}
	return more
}

// shortFrames are the innermost lines of a stack, without the folders.
func shortFrames(frames []string, most int) string {
	var out []string
	for _, f := range frames[:min(len(frames), most)] {
		file, rest, _ := strings.Cut(f, ":")
		name := path.Base(file)
		if name == "__init__.py" {
			name = path.Base(path.Dir(file)) + "/" + name
		}
		out = append(out, name+":"+rest)
	}
	return strings.Join(out, " < ")
}

// hangs is the part of a Head that finds hangs.
type hangs struct {
	floor   time.Duration
	states  map[int]map[int]*quietRank // by rank and process
	world   int
	stepped time.Duration // the last row of a step
	steps   int64         // rows of steps
	took    []time.Duration
	open    *episode
	pending []runlog.Hang // of before the first complete step
	at      []time.Duration
	lost    time.Duration // in hangs that are over
	count   int
}

// episode is a hang that lasts.
type episode struct {
	stall
	since time.Duration // the last step
}

// slack is for states and stacks on the way, on a host that is full.
const slack = 5 * time.Second

// tookMost is how many steps the median is of.
const tookMost = 127

// after is the time without a step that is a hang.
func (h *hangs) after() time.Duration {
	if len(h.took) == 0 {
		return h.floor
	}
	sorted := slices.Sorted(slices.Values(h.took))
	return max(hangSteps*sorted[len(sorted)/2], h.floor)
}

// step notes that a rank has finished a step.
func (h *hangs) step(r Row, at time.Duration) {
	h.stepped = at
	h.steps++
	if len(h.took) == tookMost {
		h.took = slices.Delete(h.took, 0, 1)
	}
	h.took = append(h.took, seconds(r.Took))
}

// ranks are the newest states, by rank.
func (h *hangs) ranks() []*quietRank {
	out := make([]*quietRank, h.world)
	for r, of := range h.states {
		if r >= h.world {
			continue
		}
		for _, s := range of {
			if o := out[r]; o == nil || s.better(o) {
				out[r] = s
			}
		}
	}
	return out
}

// better reports whether s rather than o is the process of their rank: it runs, is in calls, or came later.
func (s *quietRank) better(o *quietRank) bool {
	lives := func(x *quietRank) int {
		return map[bool]int{true: 2}[x.Process != processEnded] + map[bool]int{true: 1}[len(x.Entered) > 0]
	}
	return cmp.Or(cmp.Compare(lives(s), lives(o)), cmp.Compare(s.at, o.at)) > 0
}

// state takes a row of kind state, and looks for a hang, or for the end of one.
func (h *Head) state(r Row, at time.Duration) {
	g := &h.hangs
	if g.states == nil {
		g.states = map[int]map[int]*quietRank{}
	}
	g.world = max(g.world, r.State.World)
	if g.states[r.Rank] == nil {
		g.states[r.Rank] = map[int]*quietRank{}
	}
	of := g.states[r.Rank]
	if len(of) > 8 {
		clear(of)
	}
	of[r.PID] = &quietRank{*r.State, r.Rank, r.PID, r.Host, at}
	since := g.stepped
	if g.steps == 0 {
		since = max(at-seconds(r.State.Quiet), 0)
	}
	if g.open != nil {
		if !g.waits() {
			h.resolved(at)
		}
		return
	}
	t := g.after()
	if at-since < t {
		return
	}
	ranks := g.ranks()
	for i, s := range ranks {
		if s != nil { // what it was in when its state was sent, it is in now: another state would have come
			ranks[i] = s.aged((at - s.at).Seconds())
		}
		switch {
		case s == nil && i < len(h.ranks) && h.ranks[i] != nil: // it has made steps
			k := h.ranks[i]
			if at-k.last < lost(t) { // its state is on the way
				return
			}
			ranks[i] = &quietRank{State: State{Process: processLost, Still: (at - k.last).Seconds()}, rank: i, pid: k.PID, host: k.Host}
		case s != nil && at-s.at > lost(t) && s.Process != processEnded:
			ranks[i] = &quietRank{State: State{Process: processLost, Still: (at - s.at).Seconds()}, rank: i, pid: s.pid, host: s.host}
		}
	}
	found := find(ranks, t.Seconds(), g.steps > 0)
	if found == nil {
		return
	}
	if at-since < t+max(t/3, slack) && slices.ContainsFunc(found.missing, missing.mayAnswer) {
		return
	}
	g.open = &episode{*found, since}
	g.count++
	h.say(fmt.Sprintf("hang: %s (no step for %s)", found, short(at-since)))
	for _, m := range found.missing[:min(len(found.missing), 2)] {
		if len(m.frames) > 0 {
			h.say(fmt.Sprintf("rank %d: %s", m.rank, shortFrames(m.frames, 6)))
		}
	}
	h.writeHang(at, "begun")
}

// aged is a state with what has passed since.
func (s *quietRank) aged(by float64) *quietRank {
	out := *s
	out.Open = slices.Clone(s.Open)
	for i := range out.Open {
		out.Open[i].Age += by
	}
	out.Quiet, out.Still = s.Quiet+by, s.Still+by
	if s.Answered > 0 {
		out.Answered += by
	}
	return &out
}

// lost is how long nothing comes from a rank after its collector has ended.
func lost(t time.Duration) time.Duration { return t + max(t/2, slack) }

// mayAnswer reports whether the stack of a rank may still come.
func (m missing) mayAnswer() bool {
	return m.where == "" && m.why != "stopped" && m.why != "ended" && m.why != "absent"
}

// waits reports whether the ranks of the open episode still wait in its call.
func (h *hangs) waits() bool {
	ranks := h.ranks()
	for _, r := range h.open.waiting {
		if s := ranks[r]; s != nil {
			c := s.waits()
			if s.Process == processEnded || c != nil && c.Age >= h.floor.Seconds()/2 {
				return true
			}
		}
	}
	return false
}

// resolved ends the open episode.
func (h *Head) resolved(at time.Duration) {
	e := h.hangs.open
	took := at - e.since
	h.hangs.lost += took
	text := "the job continued after " + short(took)
	if len(e.missing) > 0 {
		var rs []int
		for _, m := range e.missing {
			rs = append(rs, m.rank)
		}
		text += ": the hang of " + plural(len(rs), "rank") + " " + spans(rs) + " is over"
	}
	h.say(text)
	h.writeHang(at, "over")
	h.hangs.open = nil
}

// writeHang writes the open episode to the run log, which may not have begun yet.
func (h *Head) writeHang(at time.Duration, event string) {
	e := h.hangs.open
	line := runlog.Hang{Event: event, Since: runlog.SecondsOf(e.since), Kind: e.call.Kind, Number: e.call.Number, Detail: e.call.Detail, Group: e.call.Group, Differs: e.differs, Text: e.String()}
	for _, r := range e.waiting {
		line.Waiting = append(line.Waiting, star.Worker(r))
	}
	for _, m := range e.missing {
		line.Missing = append(line.Missing, star.Worker(m.rank))
		line.Ranks = append(line.Ranks, runlog.HangRank{Rank: m.rank, Why: m.why, Where: m.where, Call: m.call, Text: m.text, Stack: m.frames})
	}
	if !h.ready {
		h.hangs.pending, h.hangs.at = append(h.hangs.pending, line), append(h.hangs.at, at)
		return
	}
	h.last = max(h.last, at)
	h.log.Write(h.last, line)
}

// writePending writes the hangs of before the first complete step.
func (h *Head) writePending() {
	for i, line := range h.hangs.pending {
		h.last = max(h.last, h.hangs.at[i])
		h.log.Write(h.last, line)
	}
	h.hangs.pending = nil
}

// mismatches describes calls of one number that differ between ranks, for a program that has ended: PyTorch often ends
// such a job before a wait has become long.
func (h *hangs) mismatches() (texts []string) {
	ranks := h.ranks()
	type key struct {
		group  string
		number int64
	}
	calls := map[key]map[string][]int{}
	names := map[string]Call{}
	for r, s := range ranks {
		if s == nil {
			continue
		}
		for _, c := range s.Entered {
			k, name := key{c.Group, c.Number}, c.name()
			if slices.Contains(uneven, c.Kind) {
				name = c.Kind
			}
			if calls[k] == nil {
				calls[k] = map[string][]int{}
			}
			names[name] = c
			calls[k][name] = append(calls[k][name], r)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(calls), func(a, b key) int { return cmp.Compare(a.group, b.group) }) {
		if of := calls[k]; len(of) > 1 {
			var parts []string
			for _, name := range slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(len(of[b])-len(of[a]), cmp.Compare(a, b)) }) {
				parts = append(parts, fmt.Sprintf("%s %s %s", plural(len(of[name]), "rank"), spans(of[name]), name))
			}
			texts = append(texts, "the last calls of the ranks differ: "+strings.Join(parts, ", "))
		}
	}
	return texts
}
