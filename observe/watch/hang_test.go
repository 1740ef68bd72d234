package watch

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"star"
	"star/runlog"
)

// waiting is a rank that waits in a call of the group of all ranks.
func waiting(kind string, number int64, detail string, age float64) *State {
	c := Call{Group: "0", Ranks: "0-3", Number: number, Kind: kind, Detail: detail, Token: number<<8 | 1, Age: age}
	return &State{World: 4, Quiet: age, Still: age, Open: []Call{c}, Entered: []Call{c}, Answered: 1, Line: "train.py:30 in main", Frames: []string{"/x/train.py:30 in main"}}
}

// outside is a rank that is in its own code.
func own(number int64, still float64, line string) *State {
	return &State{World: 4, Quiet: still, Still: still, Entered: []Call{{Group: "0", Ranks: "0-3", Number: number, Kind: "all_reduce", Detail: "float32[8]"}},
		Answered: 1, Line: line, Frames: []string{"/x/" + line}}
}

func with(s *State, change func(*State)) *State { change(s); return s }

func TestFindsHangs(t *testing.T) {
	reduce := func(age float64) *State { return waiting("all_reduce", 5, "float32[8]", age) }
	gradients := func(age float64, computing bool) *State {
		c := Call{Group: "gradients of 0", Ranks: "0-3", Number: 9, Kind: "gradients of DDP", Token: 257, Age: age, Computing: computing}
		return &State{World: 4, Quiet: age, Still: age, Open: []Call{c}, Entered: []Call{c}, Answered: 1, Line: "train.py:31 in main", Frames: []string{"/x/train.py:31 in main"}}
	}
	row := func(group, ranks string) *State {
		return with(reduce(20), func(s *State) {
			s.Open[0].Group, s.Open[0].Ranks = group, ranks
			s.Entered = append([]Call{{Group: "0", Ranks: "0-3", Number: 4, Kind: "all_reduce"}}, s.Open...)
		})
	}
	for _, x := range []struct {
		name  string
		ranks []*State
		want  string // empty: no hang
	}{
		{"a rank sleeps", []*State{reduce(16), reduce(16), own(4, 16, "dataset.py:41 in __getitem__"), reduce(16)},
			"3 of 4 ranks wait in all_reduce #5 float32[8]; rank 2 is in dataset.py:41 in __getitem__"},
		{"not for long enough", []*State{reduce(14), reduce(14), own(4, 16, "a.py:1 in f"), reduce(14)}, ""},
		{"all are in their own code", []*State{own(4, 60, "a.py:1 in save"), own(4, 60, "a.py:1 in save"), own(4, 60, "a.py:1 in save"), own(4, 60, "a.py:1 in save")}, ""},
		{"two of them", []*State{reduce(16), own(4, 16, "a.py:1 in f"), own(4, 16, "a.py:1 in f"), reduce(16)}, "ranks 1-2 are in a.py:1 in f"},
		{"it declares a phase", []*State{reduce(90), reduce(90), with(own(4, 90, "a.py:1 in f"), func(s *State) { s.Phase = "evaluation" }), reduce(90)}, ""},
		{"it goes through batches", []*State{reduce(90), reduce(90), own(4, 3, "a.py:1 in f"), reduce(90)}, ""},
		{"it computes", []*State{reduce(50), reduce(50), with(own(4, 50, "a.py:1 in f"), func(s *State) { s.CPU = 1 }), reduce(50)}, ""},
		{"it computes for too long", []*State{reduce(61), reduce(61), with(own(4, 61, "a.py:1 in f"), func(s *State) { s.CPU = 1 }), reduce(61)}, "rank 2 is in a.py:1 in f"},
		{"it writes", []*State{reduce(50), reduce(50), with(own(4, 50, "a.py:1 in f"), func(s *State) { s.IO = 1e7 }), reduce(50)}, ""},
		{"it saves", []*State{reduce(600), reduce(600), with(own(4, 600, "a.py:1 in f"), func(s *State) {
			s.IO, s.Frames = 1e7, []string{"/lib/torch/serialization.py:1 in save", "/x/a.py:1 in f"}
		}), reduce(600)}, ""},
		{"it saves, and nothing is written", []*State{reduce(16), reduce(16), with(own(4, 16, "a.py:1 in f"), func(s *State) {
			s.Frames = []string{"/lib/torch/serialization.py:1 in save", "/x/a.py:1 in f"}
		}), reduce(16)}, "rank 2 is in a.py:1 in f"},
		{"it compiles", []*State{reduce(600), reduce(600), with(own(4, 600, "a.py:1 in f"), func(s *State) {
			s.CPU, s.Frames = 0.9, []string{"/lib/torch/_inductor/x.py:1 in g"}
		}), reduce(600)}, ""},
		{"it waits for a disk", []*State{reduce(16), with(own(4, 16, "a.py:1 in f"), func(s *State) { s.Process = processDisk }), reduce(16), reduce(16)}, "rank 1 is in a.py:1 in f, and waits for a disk"},
		{"it is stopped in the call", []*State{reduce(16), with(reduce(16), func(s *State) { s.Process = processStopped }), reduce(16), reduce(16)}, "3 of 4 ranks wait in all_reduce #5 float32[8]; rank 1 is stopped by a signal (process 101 on node-a)"},
		{"it has ended", []*State{reduce(16), with(own(4, 16, ""), func(s *State) { s.Process = processEnded }), reduce(16), reduce(16)}, "rank 1 has ended (process 101 on node-a)"},
		{"it never came", []*State{waiting("init_process_group", 1, "", 16), waiting("init_process_group", 1, "", 16), nil, waiting("init_process_group", 1, "", 16)}, "3 of 4 ranks wait in init_process_group #1; rank 2 has not started"},
		{"it does not answer", []*State{reduce(16), reduce(16), reduce(16), with(own(4, 16, ""), func(s *State) { s.Answered, s.Kernel = 0, "futex_wait" })}, "rank 3 does not answer: other code holds its interpreter (process 103 on node-a), the kernel has it in futex_wait"},
		{"another shape", []*State{reduce(16), waiting("all_reduce", 5, "float32[9]", 16), reduce(16), reduce(16)}, "3 of 4 ranks wait in all_reduce #5 float32[8]; rank 1 is in all_reduce #5 float32[9], at train.py:30 in main: types or shapes differ"},
		{"another call", []*State{reduce(16), waiting("broadcast", 5, "float32[8]", 16), reduce(16), reduce(16)}, "rank 1 is in broadcast #5 float32[8], at train.py:30 in main: the ranks call in another order"},
		{"shapes that may differ", []*State{waiting("all_to_all", 5, "2 x float32[1]", 16), waiting("all_to_all", 5, "2 x float32[3]", 16), waiting("all_to_all", 5, "", 16), own(4, 16, "a.py:1 in f")},
			"3 of 4 ranks wait in all_to_all #5 2 x float32[1]; rank 3 is in a.py:1 in f"},
		{"a branch", []*State{gradients(16, false), gradients(16, false), with(waiting("barrier", 2, "", 17), func(s *State) { s.Line = "train.py:44 in main" }), gradients(16, false)},
			"3 of 4 ranks wait in gradients of DDP #9; rank 2 waits in barrier #2, at train.py:44 in main"},
		{"in its backward pass", []*State{gradients(16, false), gradients(16, false), with(gradients(16, true), func(s *State) { s.Line = "ops.py:7 in backward" }), gradients(16, false)}, "rank 2 is in ops.py:7 in backward"},
		{"with unused parameters", []*State{with(gradients(16, true), func(s *State) { s.Frames = []string{"/lib/torch/autograd/__init__.py:1 in backward"} }), gradients(16, false), own(4, 16, "a.py:1 in f"), gradients(16, false)},
			"3 of 4 ranks wait in gradients of DDP #9; rank 2 is in a.py:1 in f"},
		{"through another group", []*State{reduce(20), reduce(20), row("1", "2-3"), own(4, 20, "a.py:1 in f")}, "2 of 4 ranks wait in all_reduce #5 float32[8]; rank 3 is in a.py:1 in f"},
		{"all are in it", []*State{reduce(50), reduce(50), reduce(50), reduce(50)}, ""},
		{"all are in it, for long", []*State{reduce(61), reduce(61), reduce(61), reduce(61)}, "4 of 4 ranks wait in all_reduce #5 float32[8]; all of them have entered it"},
		{"all are in it, and one computes there", []*State{reduce(61), with(reduce(61), func(s *State) { s.CPU = 1 }), reduce(61), reduce(61)}, ""},
		{"all are in DDP's constructor, which imports modules", []*State{building(), building(), building(), building()}, ""},
		{"it has gone further", []*State{reduce(16), own(7, 16, "a.py:1 in f"), reduce(16), own(4, 16, "b.py:2 in g")}, "2 of 4 ranks wait in all_reduce #5 float32[8]; rank 3 is in b.py:2 in g"},
		{"a stopped worker of the loader", []*State{reduce(16), with(own(4, 16, "a.py:1 in f"), func(s *State) {
			s.Frames = []string{"/lib/torch/utils/data/dataloader.py:1 in _get_data"}
			s.Children = []Child{{PID: 7, Line: "data.py:3 in __getitem__"}, {PID: 8, Process: processStopped}}
		}), reduce(16), reduce(16)}, "rank 1 waits for a worker of its DataLoader, process 8, which is stopped by a signal"},
		{"a worker of the loader sleeps", []*State{reduce(16), with(own(4, 16, "a.py:1 in f"), func(s *State) {
			s.Frames = []string{"/lib/torch/utils/data/dataloader.py:1 in _get_data"}
			s.Children = []Child{{PID: 7, Line: "data.py:3 in __getitem__"}}
		}), reduce(16), reduce(16)}, "rank 1 waits for a worker of its DataLoader, process 7, which is in data.py:3 in __getitem__"},
	} {
		got := ""
		if s := find(quietRanks(x.ranks), 15, true); s != nil {
			got = s.String()
		}
		if got == "" != (x.want == "") || !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}

// building is a rank in DDP's constructor, on a host that is too full to give it a processor.
func building() *State {
	return with(waiting(construction, 1, "", 100), func(s *State) { s.Frames = []string{"/lib/torch/_dynamo/x.py:1 in <module>"} })
}

func quietRanks(states []*State) []*quietRank {
	out := make([]*quietRank, len(states))
	for i, s := range states {
		if s != nil {
			out[i] = &quietRank{State: *s, rank: i, pid: 100 + i, host: "node-a"}
		}
	}
	return out
}

// The flight recorder names the collective that DDP waits in: the first one that the missing rank has not entered.
func TestNamesCallsOfDDP(t *testing.T) {
	flight := func(last int64) (out []Call) {
		for n := last - 2; n <= last; n++ {
			out = append(out, Call{Group: "0", Number: n, Kind: "all_reduce", Detail: fmt.Sprintf("float32[%d]", n)})
		}
		return out
	}
	in := Call{Group: "gradients of 0", Ranks: "0-1", Number: 9, Kind: "gradients of DDP", Token: 257, Age: 20}
	s := find(quietRanks([]*State{
		{World: 2, Quiet: 20, Still: 20, Open: []Call{in}, Entered: []Call{in}, Flight: flight(31)},
		{World: 2, Quiet: 20, Still: 20, Answered: 1, Line: "a.py:1 in f", Flight: flight(29)},
	}), 15, true)
	if want := "1 of 2 ranks waits in all_reduce #30 float32[30] (gradients of DDP); rank 1 is in a.py:1 in f"; s == nil || s.String() != want {
		t.Errorf("%v, want %q", s, want)
	}
}

// still sends the states of all ranks.
func (j *job) still(states ...*State) {
	for r, s := range states {
		if s != nil {
			j.head.Take(Row{Kind: "state", Rank: r, PID: j.pid + r, Host: "node-a", State: s}, j.now)
		}
	}
}

// A hang is one episode: in the text, in the log, and over when a rank makes a step.
func TestHangIsOneEpisode(t *testing.T) {
	j := newJob(t, 4)
	for n := range int64(50) {
		j.step(n, 4, nil)
	}
	began := j.now
	for age := 5.0; age < 31; age++ {
		j.now = began + seconds(age)
		j.still(waiting("all_reduce", 5, "float32[8]", age), waiting("all_reduce", 5, "float32[8]", age), own(4, age, "a.py:1 in f"), waiting("all_reduce", 5, "float32[8]", age))
	}
	j.says("hang: 3 of 4 ranks wait in all_reduce #5 float32[8]; rank 2 is in a.py:1 in f (no step for 16.0 s)")
	j.says("rank 2: a.py:1 in f")
	if n := len(slices.DeleteFunc(slices.Clone(j.said), func(s string) bool { return !strings.HasPrefix(s, "hang:") })); n != 1 {
		t.Errorf("%d hangs are said", n)
	}
	j.now = began + 31*time.Second
	j.step(50, 4, nil)
	j.says("the job continued after 31.0 s: the hang of rank 2 is over")
	j.head.End(j.now, "")
	j.says("51 steps in", "with 1 hang of 31.0 s")

	j.head.log.Flush()
	var hangs []runlog.Hang
	if _, err := runlog.Read(&j.log, "log", func(l runlog.Line) error {
		if h, ok := l.Entry.(runlog.Hang); ok {
			hangs = append(hangs, h)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if len(hangs) != 2 || hangs[0].Event != "begun" || hangs[1].Event != "over" || hangs[0].Number != 5 || !slices.Equal(hangs[0].Missing, []star.Worker{2}) || hangs[0].Ranks[0].Where != "a.py:1 in f" {
		t.Errorf("the log has %+v", hangs)
	}
}

// The states of the ranks come one after the other, and a stack may come late: neither makes a rank silent.
func TestWaitsForStatesAndStacks(t *testing.T) {
	j := newJob(t, 3)
	for n := range int64(20) {
		j.step(n, 3, nil)
	}
	began := j.now
	late := func(age float64) *State {
		return with(own(4, age, "a.py:1 in f"), func(s *State) {
			if s.World = 3; age < 18 {
				s.Answered = 0
			}
		})
	}
	in := func(age float64) *State {
		return with(waiting("all_reduce", 5, "", age), func(s *State) { s.World = 3 })
	}
	j.now = began + 16*time.Second
	j.still(in(16)) // the first row of all
	j.saysNot("hang")
	for age := 16.5; age < 20; age++ {
		j.now = began + seconds(age)
		j.still(in(age), late(age), in(age))
	}
	j.says("hang: 2 of 3 ranks wait in all_reduce #5; rank 1 is in a.py:1 in f")
	j.saysNot("has sent nothing")

	// A host that sends nothing is named after one and a half times as long.
	j = newJob(t, 3)
	for n := range int64(20) {
		j.step(n, 3, nil)
	}
	began = j.now
	for age := 5.0; age < 25; age++ {
		j.now = began + seconds(age)
		j.still(in(age), in(age))
	}
	j.says("rank 2 has sent nothing for")
}

// Ten median steps are no hang, however long they are.
func TestLongStepsAreNoHang(t *testing.T) {
	j := newJob(t, 2)
	for n := range int64(20) {
		j.now += 4 * time.Second
		for r := range 2 {
			j.head.Take(Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: n, Took: 4, Wait: 0.1, Samples: 1}, j.now)
		}
	}
	began := j.now
	for age := 5.0; age < 45; age++ {
		j.now = began + seconds(age)
		j.still(waiting("all_reduce", 5, "", age), own(4, age, "a.py:1 in f"))
		if age == 39 {
			j.saysNot("hang")
		}
	}
	j.says("hang: 1 of 4 ranks waits")
}

// A rank that hangs before the first step is in the log, which readers read.
func TestHangAtTheStart(t *testing.T) {
	j := newJob(t, 0)
	for age := 5.0; age < 31; age++ {
		j.now = seconds(age)
		s := waiting("init_process_group", 1, "", age)
		j.still(s, s, own(0, age, "train.py:3 in <module>"), s)
	}
	j.head.End(j.now, "")
	j.says("hang: 3 of 4 ranks wait in init_process_group #1; rank 2 is in train.py:3 in <module>")
	j.says("no step is complete: the job hung for")
	j.head.log.Flush()
	kinds := map[string]int{}
	if _, err := runlog.Read(&j.log, "log", func(l runlog.Line) error { kinds[fmt.Sprintf("%T", l.Entry)]++; return nil }); err != nil || kinds["runlog.Hang"] != 1 || kinds["runlog.Summary"] != 1 {
		t.Errorf("the log has %v, %v", kinds, err)
	}
}

// A program that PyTorch ends at once still says which call differed.
func TestDifferentCallsOfAProgramThatHasEnded(t *testing.T) {
	j := newJob(t, 3)
	for n := range int64(12) {
		j.step(n, 3, nil)
	}
	for r, detail := range []string{"float32[8]", "float32[9]", "float32[8]"} {
		s := waiting("all_reduce", 5, detail, 0)
		s.World, s.Process = 3, processEnded
		j.head.Take(Row{Kind: "state", Rank: r, PID: j.pid + r, Host: "node-a", State: s}, j.now)
	}
	j.head.End(j.now, "")
	j.says("the last calls of the ranks differ: ranks 0,2 all_reduce #5 float32[8], rank 1 all_reduce #5 float32[9]")
}

// The line of a blocked rank takes the place of what might block it.
func TestBlockedInItsOwnCode(t *testing.T) {
	j := newJob(t, 3)
	for n := range int64(200) {
		for r := range 3 {
			row := Row{Kind: "step", Rank: r, PID: j.pid + r, Host: "node-a", Step: n, Took: 0.1, Samples: 8, CPU: 0.04, Wait: 0.05, Line: "train.py:9 in forward"}
			if r == 1 && n >= 50 {
				row.Wait, row.CPU = 0, 0.004
			} else if r == 1 {
				row.CPU = 0.045
			}
			j.head.Take(row, time.Duration(n)*100*time.Millisecond+time.Duration(r))
		}
	}
	j.says("rank 1 on node-a is", "own time 100 ms, others 50 ms", "blocked in its own code (train.py:9 in forward) for", "(cause: blocked)")
	j.saysNot("compute")
}

// A file of calls is read as the hook writes it, and one with other bytes is refused.
func TestReadsCalls(t *testing.T) {
	b := make([]byte, callsSize)
	copy(b, callsMagic)
	le := binary.LittleEndian
	le.PutUint32(b[8:], callsFormat)
	le.PutUint64(b[16:], 4711)
	le.PutUint32(b[24:], 1)
	le.PutUint32(b[28:], 4)
	le.PutUint64(b[stepsAt:], 12)
	copy(b[phaseAt:], "evaluation")
	put := func(i int, token, number uint64, text string) {
		e := b[callsHeader+i*callEntry:]
		le.PutUint64(e, token)
		le.PutUint64(e[8:], number)
		le.PutUint32(e[16:], uint32(len(text)))
		copy(e[entryText:], text)
	}
	put(3, 9<<8|4, 5, "0\x000-3\x00all_reduce\x00float32[8]")
	put(1, 8<<8|2, 4, "g\x001,3\x00barrier\x00")
	put(openCalls, 1, 5, "0\x000-3\x00all_reduce\x00float32[8]")
	path := filepath.Join(t.TempDir(), "calls-4711")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	c, err := readCalls(f)
	if err != nil || c.rank != 1 || c.world != 4 || c.steps != 12 || c.phase != "evaluation" || len(c.open) != 2 || len(c.entered) != 1 {
		t.Fatalf("%+v, %v", c, err)
	}
	if last := c.open[1]; last.name() != "all_reduce #5 float32[8]" || !slices.Equal(last.members(), []int{0, 1, 2, 3}) || !slices.Equal(c.open[0].members(), []int{1, 3}) {
		t.Errorf("%+v", c.open)
	}
	for _, change := range []func(){func() { b[0] = 'X' }, func() { le.PutUint32(b[28:], 0) }, func() { le.PutUint32(b[24:], 9) }, func() { le.PutUint32(b[8:], 7) }} {
		keep := slices.Clone(b)
		change()
		if _, err := parseCalls(b); err == nil {
			t.Error("it is read")
		}
		b = keep
	}
}

// No content of a file, which the watched program can write, is a panic.
func FuzzCalls(f *testing.F) {
	f.Add(make([]byte, callsSize))
	f.Fuzz(func(t *testing.T, b []byte) {
		full := make([]byte, callsSize)
		copy(full, b)
		copy(full, callsMagic)
		binary.LittleEndian.PutUint32(full[8:], callsFormat)
		if c, err := parseCalls(full); err == nil {
			find(quietRanks([]*State{{World: c.world, Open: c.open, Entered: c.entered}}), 1, true)
		}
	})
}
