package watch

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"star"
	"star/coord/measure"
	"star/runlog"
	"star/straggler"
)

const (
	// most steps of a rank that wait for other ranks; beyond it the oldest one counts as dropped
	behind = 64
	enough = 10 // steps after a verdict before its cost is reported
	greet  = 10 // steps after which the job is introduced
	// in which two processes that send rows of one rank are two, and not one that was started again
	duplicate = 3 * time.Second
)

// Head puts the rows of all ranks together, in their order of arrival. It is used by one goroutine, and has no
// clock: at is since the watch began.
type Head struct {
	log      *runlog.Writer
	say      func(text string)
	start    runlog.Start
	detector *straggler.Detector
	ranks    []*rank // by number; nil: no hello yet
	ready    bool    // the log has begun
	steps    map[int64][]*came
	offset   int64 // of the steps of processes that were started again
	newest   int64 // of those that are complete
	history  history
	pace     measure.Pace
	last     time.Duration // of the last line
	version  int64
	samples  int64
	refused  map[string]bool // texts that were printed already
	// orphans are rows of ranks with a dropped hello.
	orphans int64
	slow    map[star.Worker]runlog.Verdict
	factors map[star.Worker]*runlog.Factor // of those
	told    bool                           // how fast the job is
	due     int64                          // version at which the cost of slow ranks is reported; 0: none
	lost    time.Duration                  // by slow ranks, of all steps
	began   time.Duration                  // the first update
	ended   bool
	hangs   hangs
	stages  *stages // of a pipeline; else nil
	crowd   *crowd
	lines   map[int]string // where a rank is outside of collectives in most looks, as its rows say
}

// rank is a rank that has sent hello.
type rank struct {
	Row                   // its hello
	waits         []*came // for other ranks, in order of arrival
	last          time.Duration
	recorded      time.Duration // At of its last record
	dropped       int64
	droppedBefore int64 // by processes before
}

// came is the row of a step.
type came struct {
	Row
	at time.Duration
}

// NewHead writes the rows to log, and reports findings in words. What start has besides the
// configuration goes into the log.
func NewHead(log *runlog.Writer, start runlog.Start, say func(text string)) *Head {
	return &Head{log: log, say: say, start: start, steps: map[int64][]*came{}, refused: map[string]bool{}, slow: map[star.Worker]runlog.Verdict{}, factors: map[star.Worker]*runlog.Factor{},
		hangs: hangs{floor: hangFloor()}, lines: map[int]string{}}
}

// once prints a text unless it was printed before.
func (h *Head) once(format string, a ...any) {
	text := fmt.Sprintf(format, a...)
	if !h.refused[text] && len(h.refused) < 1000 {
		h.refused[text] = true
		h.say(text)
	}
}

// Take processes a row.
func (h *Head) Take(r Row, at time.Duration) {
	if h.ended {
		return
	}
	switch r.Kind {
	case "hello":
		h.hello(r, at)
	case "note":
		h.once("rank %d is not measured any more, and goes on: %s", r.Rank, r.Text)
	case "state":
		h.state(r, at)
	case "step":
		h.step(r, at)
	}
}

func (h *Head) hello(r Row, at time.Duration) {
	if h.ranks == nil {
		h.ranks = make([]*rank, r.World)
	}
	if r.World != len(h.ranks) {
		h.once("rank %d on %s says that the job has %d ranks, others say %d: it is left out; give each job a star watch of its own", r.Rank, r.Host, r.World, len(h.ranks))
		return
	}
	was := h.ranks[r.Rank]
	if was == nil {
		h.ranks[r.Rank] = &rank{Row: r, last: at}
		return
	}
	if was.PID == r.PID && was.Host == r.Host {
		return
	}
	if at-was.last < duplicate {
		h.once("two processes are rank %d: %d on %s, and %d on %s, which is left out; each needs a rank of its own (RANK, or what the launcher sets)", r.Rank, was.PID, was.Host, r.PID, r.Host)
		return
	}
	// All ranks were restarted, as torchrun does: their steps start again, after those that are
	// complete.
	h.say(fmt.Sprintf("rank %d restarted on %s", r.Rank, r.Host))
	h.ranks[r.Rank] = &rank{Row: r, last: at, droppedBefore: was.droppedBefore + was.dropped}
	if len(h.steps) > 0 || h.newest >= h.offset {
		clear(h.steps)
		h.offset = h.newest + 1
		for _, o := range h.ranks { // rows of those that run on would be of another count
			if o != nil {
				o.last, o.waits = min(o.last, at), nil
			}
		}
	}
}

func (h *Head) step(r Row, at time.Duration) {
	if h.ranks == nil || r.Rank >= len(h.ranks) || h.ranks[r.Rank] == nil {
		h.orphans++
		return
	}
	k := h.ranks[r.Rank]
	if k.PID != r.PID || k.Host != r.Host {
		return
	}
	k.last, k.dropped = at, r.Dropped
	h.lines[r.Rank] = r.Line
	h.hangs.step(r, at)
	if h.hangs.open != nil {
		h.resolved(at)
	}
	if r.Step > math.MaxInt64-h.offset {
		h.once("rank %d says that it has made step %d, which cannot be: this is not used", r.Rank, r.Step)
		return
	}
	r.Step += h.offset
	of := h.steps[r.Step]
	if of == nil {
		of = make([]*came, len(h.ranks))
		h.steps[r.Step] = of
	}
	of[r.Rank] = &came{r, at}
	k.waits = append(k.waits, of[r.Rank])
	if !slices.Contains(of, nil) {
		delete(h.steps, r.Step)
		h.newest = max(h.newest, r.Step)
		h.complete(of)
		for w, c := range of {
			h.ranks[w].waits = slices.DeleteFunc(h.ranks[w].waits, func(o *came) bool { return o == c })
		}
	}
	if len(k.waits) > behind {
		h.drop(k.waits[0])
		k.waits = slices.Delete(k.waits, 0, 1)
	}
}

// drop forgets a row that has waited for other ranks too long.
func (h *Head) drop(c *came) {
	of := h.steps[c.Step]
	if of == nil || of[c.Rank] != c {
		return
	}
	of[c.Rank] = nil
	if !slices.ContainsFunc(of, func(o *came) bool { return o != nil }) {
		delete(h.steps, c.Step)
	}
}

// complete takes a step of all ranks.
func (h *Head) complete(of []*came) {
	if !h.ready {
		h.begin(of)
	}
	order := slices.Clone(of)
	slices.SortStableFunc(order, func(a, b *came) int { return int(a.at - b.at) })
	fire := runlog.Fire{Seq: h.version + 1, Version: h.version + 1}
	var events []straggler.Event
	records := make([]star.Record, len(of))
	for _, c := range order {
		h.last = max(h.last+1, c.at)
		rec := c.record(star.Worker(c.Rank), h.last)
		rec.At = max(rec.At, h.ranks[c.Rank].recorded) // without this, the next row after a late one would seem to be earlier
		h.ranks[c.Rank].recorded = rec.At
		rec.Step, rec.Basis = h.version, h.version
		h.log.Record(h.last, &runlog.Record{Record: rec, Start: -1})
		records[c.Rank] = c.judged(rec)
		h.comparePace(&rec)
	}
	if judged := h.stages.take(h.crowd.take(of, records, h.say)); judged != nil {
		for _, c := range order {
			events = append(events, h.detector.Observe(judged[c.Rank])...)
		}
	}
	for w, rec := range records {
		fire.Workers = append(fire.Workers, star.Worker(w))
		fire.Staleness = append(fire.Staleness, 0)
		fire.Pieces = append(fire.Pieces, h.samples, int64(rec.Samples))
		h.samples += int64(rec.Samples)
		fire.Round += rec.Samples
	}
	fire.Samples = h.samples
	h.version++
	h.last++
	h.log.Write(h.last, fire)
	h.history.add(records)
	if len(h.slow) > 0 && h.stages == nil {
		seen, even := h.history.without(h.slow, h.version-1)
		h.lost += seen - even
	}
	for _, e := range events {
		h.event(e)
	}
	if h.due > 0 && h.version >= h.due {
		h.due = 0
		h.cost()
	}
	if h.version == greet {
		h.introduce()
	}
}

// begin writes what the log begins with.
func (h *Head) begin(of []*came) {
	h.ready = true
	first := h.ranks[0]
	batch := 0
	for _, c := range of {
		batch += max(c.Samples, 1)
	}
	batch = max(batch/len(of), 1)
	h.start.Format = runlog.MaxFormat
	h.start.Config, _ = json.Marshal(map[string]any{ // what readers of logs go by
		"arch": "allreduce", "batch": batch, "workers": len(of), "mode": "ssgd", "optimizer": strings.ToLower(first.Optimizer), "momentum": first.Momentum,
		"model": first.Script, "dataset": h.where(), "seed": 0, "watched": first.How,
	})
	h.log.Write(0, h.start)
	for w, r := range h.ranks {
		h.log.Write(r.last, runlog.Join{Worker: star.Worker(w), Peer: fmt.Sprintf("%s, process %d", r.Host, r.PID)})
	}
	h.last = of[0].at - seconds(of[0].Took)
	for _, r := range h.ranks {
		h.last = max(h.last, 0, min(r.last, h.last))
	}
	h.began = h.last
	h.log.Write(h.last, runlog.Train{Workers: len(of), Model: first.Script, Data: h.where(), Params: first.Params, Plan: "ssgd"})
	h.writePending()
	// cannot fail: there is a rank
	h.detector, _ = straggler.New(straggler.Config{Workers: len(of), Stops: true})
	h.beginPace()
	h.crowd = newCrowd(h.ranks)
	h.history = history{n: len(of), batch: batch, momentum: first.Momentum, sharded: first.sharded() || first.staged()}
	if first.staged() {
		h.stages = new(stages)
	}
}

// introduce prints what is watched.
func (h *Head) introduce() {
	h.told = true
	first := h.ranks[0]
	torch := ""
	if first.Torch != "" {
		torch = ", torch " + first.Torch
	}
	h.say(fmt.Sprintf("%s of %s on %s, %s%s, %s a step", count(len(h.ranks), "rank"), first.Script, count(len(h.hosts()), "host"), first.How, torch, short(h.history.step(0))))
	if len(h.ranks) == 1 {
		h.say("with one rank no rank is slower than another")
	}
	if first.sharded() {
		h.say("STAR does not shard parameters: it says nothing of what it would save")
	}
	if first.staged() {
		h.say(fmt.Sprintf("the stages of a pipeline have different work, and STAR has no pipelines: each rank is compared with its own steps %d to %d, and one that was slow before is not found", cold, cold+settled-1))
	}
	if first.CUDA {
		h.say("own times are by the GPU's clock")
	}
}

func (h *Head) hosts() map[string]int {
	hosts := map[string]int{}
	for _, r := range h.ranks {
		if r != nil {
			hosts[r.Host]++
		}
	}
	return hosts
}

// where are the hosts, in words.
func (h *Head) where() string { return strings.Join(slices.Sorted(maps.Keys(h.hosts())), ", ") }

// anyBlock is how evidence says what may block a rank, where its line is not known.
const anyBlock = "(sleep, I/O, lock or device)"

// isBlocked reports whether evidence says that a rank is blocked in its own code.
func isBlocked(e straggler.Evidence) bool { return strings.Contains(e.Text, anyBlock) }

// event prints and logs a finding of the detector.
func (h *Head) event(e straggler.Event) {
	v := e.Verdict
	out := runlog.Verdict{Worker: e.Worker, Event: e.Kind.String(), Step: e.Step, Since: v.Since, Until: v.Until, Slowdown: runlog.Number(v.Slowdown), Cause: v.Cause.String()}
	var texts []string
	blocked := slices.ContainsFunc(v.Evidence, isBlocked)
	for _, x := range v.Evidence {
		x = h.stages.words(int(e.Worker), x)
		if line := h.lines[int(e.Worker)]; isBlocked(x) && line != "" {
			x.Text = strings.Replace(x.Text, anyBlock, "("+line+")", 1)
		} else if own, ok := strings.CutPrefix(x.Text, "compute "); ok && blocked {
			x.Text = "own time " + own
		} else if sent, ok := strings.CutPrefix(x.Text, "network out: push "); ok {
			x.Text = "slow link: sending " + sent
		}
		out.Evidence = append(out.Evidence, runlog.Evidence{What: x.What, Value: runlog.Number(x.Value), Other: runlog.Number(x.Other), Text: x.Text})
		texts = append(texts, x.Text)
	}
	cause := v.Cause.String()
	if blocked && v.Cause == straggler.Compute {
		cause = "blocked"
	}
	name := fmt.Sprintf("rank %d on %s", e.Worker, h.ranks[e.Worker].Host)
	switch e.Kind {
	case straggler.Slow, straggler.Changed:
		h.log.Write(h.last, out)
		h.slow[e.Worker] = out
		if h.stages != nil && !slices.Contains(h.stages.named, int(e.Worker)) {
			h.stages.named = append(h.stages.named, int(e.Worker))
		}
		f := h.factors[e.Worker]
		if f == nil {
			f = new(runlog.Factor)
			h.factors[e.Worker] = f
		}
		f.Add(v.Slowdown)
		is := "cause: " + cause
		if e.Kind == straggler.Changed {
			is = "the cause is " + cause + " now"
		}
		h.say(fmt.Sprintf("%s is %.1fx slow since step %d: %s (%s)", name, f.Value(), v.Since, strings.Join(texts, ", "), is))
		h.due = max(h.due, h.version+enough)
	case straggler.Recovered:
		h.log.Write(h.last, out)
		factor := v.Slowdown
		if f := h.factors[e.Worker]; f != nil {
			factor = f.Value()
		}
		delete(h.slow, e.Worker)
		delete(h.factors, e.Worker)
		h.say(fmt.Sprintf("%s is as fast as the others again at step %d (%.1fx slow since step %d, cause: %s)", name, e.Step, factor, v.Since, cause))
	default:
		h.once("rank %d, step %d: %s", e.Worker, e.Step, e.Why)
	}
}

// cost reports the cost of the slow ranks, and what STAR would save.
func (h *Head) cost() {
	if len(h.slow) == 0 || h.stages != nil { // how stages overlap is not known
		return
	}
	var since int64
	for _, v := range h.slow {
		since = max(since, v.Since)
	}
	seen, even := h.history.without(h.slow, since)
	if !(seen > 0) {
		return
	}
	lost := 100 * max(0, 1-float64(even)/float64(seen))
	if lost < 1 { // the others were as late for another reason
		h.say("that costs less than 1 % of the job's time since then: STAR would save nothing")
		return
	}
	text := fmt.Sprintf("that is %.0f %% of the job's time since then: %s a step instead of %s", lost, short(seen), short(even))
	if s := h.history.savings(since); s != "" {
		text += "; " + s
	}
	h.say(text)
}

// End prints the summary and ends the log. why is empty if the watched program has ended by itself.
func (h *Head) End(at time.Duration, why string) {
	if h.ended {
		return
	}
	h.ended = true
	if !h.ready {
		h.end(at)
		return
	}
	r := runlog.Result{Arch: "allreduce", Mode: "ssgd", Workers: len(h.ranks), Model: h.ranks[0].Script, Dataset: h.where(), Steps: h.version * int64(len(h.ranks)), Updates: h.version, Samples: h.samples,
		Wall: runlog.SecondsOf(h.last - h.began), SamplesPerS: float64(h.samples) / max((h.last-h.began).Seconds(), 1e-9), Error: why,
		TrainLoss: runlog.Number(nan), TestLoss: runlog.Number(nan), Staleness: runlog.Staleness{Histogram: map[int64]int64{0: h.version * int64(len(h.ranks))}}}
	h.log.Write(0, runlog.Summary{Result: r})
	if !h.told {
		h.introduce()
	}
	took := h.last - h.began
	text := fmt.Sprintf("%d steps in %s", h.version, short(took))
	switch g := &h.hangs; {
	case g.open != nil:
		text += fmt.Sprintf(", then none for %s: %s", short(at-g.open.since), g.open)
	case g.count > 0:
		text += fmt.Sprintf(", with %s of %s", count(g.count, "hang"), short(g.lost))
	}
	switch {
	case h.lost > 0:
		text += fmt.Sprintf(", %.0f %% of them spent waiting for slow ranks", 100*float64(h.lost)/float64(max(took, 1)))
		if s := h.history.savings(0); s != "" {
			text += "; over the last " + count(len(h.history.steps), "step") + " " + s
		}
	case h.stages != nil && len(h.stages.named) > 0:
		slices.Sort(h.stages.named)
		text += fmt.Sprintf("; slower than in its first steps was %s %s", plural(len(h.stages.named), "rank"), spans(h.stages.named))
	case len(h.ranks) > 1 && h.hangs.count > 0:
		text += "; apart from that no rank was slower than the others"
	case len(h.ranks) > 1:
		text += "; no rank was slower than the others"
		if h.version >= enough && !h.history.sharded {
			text += ": STAR would save nothing"
		}
	}
	h.say(text)
	h.differing()
	if n := h.dropped(); n > 0 {
		h.say(fmt.Sprintf("%d rows of steps were dropped, because they were not taken in time; the steps they belong to are not in the log", n))
	}
}

// dropped counts missing rows.
func (h *Head) dropped() int64 {
	n := h.orphans
	for _, r := range h.ranks {
		if r != nil {
			n += r.dropped + r.droppedBefore
		}
	}
	return n
}

// end ends a log without a step: with hangs, if there were any.
func (h *Head) end(at time.Duration) {
	g := &h.hangs
	if g.open != nil {
		h.say(fmt.Sprintf("no step is complete: the job hung for %s: %s", short(at-g.open.since), g.open))
	} else {
		h.say(h.silent())
	}
	h.differing()
	if len(g.pending) == 0 {
		return
	}
	h.ready = true
	h.start.Format = runlog.MaxFormat
	h.start.Config, _ = json.Marshal(map[string]any{"arch": "allreduce", "batch": 1, "workers": g.world, "mode": "ssgd", "optimizer": "", "model": "a job without a step", "dataset": "", "seed": 0})
	h.log.Write(0, h.start)
	h.log.Write(0, runlog.Train{Workers: g.world, Model: "a job without a step", Plan: "ssgd"})
	h.writePending()
	h.log.Write(0, runlog.Summary{Result: runlog.Result{Arch: "allreduce", Mode: "ssgd", Workers: g.world, Model: "a job without a step", Wall: runlog.SecondsOf(at),
		TrainLoss: runlog.Number(nan), TestLoss: runlog.Number(nan)}})
}

// differing reports calls that differ, unless a hang has said so.
func (h *Head) differing() {
	if e := h.hangs.open; e == nil || e.differs == "" {
		for _, text := range h.hangs.mismatches() {
			h.say(text)
		}
	}
}

// silent is the reason for a missing summary.
func (h *Head) silent() string {
	var there, lack []string
	for w, r := range h.ranks {
		if r != nil {
			there = append(there, fmt.Sprint(w))
		} else {
			lack = append(lack, fmt.Sprint(w))
		}
	}
	if len(there) > 0 && len(lack) > 0 {
		return fmt.Sprintf("no step is complete: there is nothing of %s %s of %d; ranks on other hosts need a star watch --to this one", plural(len(lack), "rank"), strings.Join(lack, ", "), len(h.ranks))
	}
	if len(there) > 0 {
		return "no step is complete: the program ended before all ranks had made one"
	}
	return "no rank has made a step: measured are Python programs with torch.optim (DDP, FSDP, own loops with torch.distributed), and loops in star_train.watch.step(); python -I, -E and -S do not import the hook"
}

func count(n int, what string) string { return fmt.Sprintf("%d %s", n, plural(n, what)) }

func plural(n int, what string) string {
	if n == 1 {
		return what
	}
	return what + "s"
}

// short is a time for people.
func short(d time.Duration) string {
	switch {
	case d >= 100*time.Second:
		return d.Round(time.Second).String()
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 10*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	}
	return fmt.Sprintf("%.1f ms", d.Seconds()*1e3)
}

// Begun reports whether the log has begun.
func (h *Head) Begun() bool { return h.ready }
