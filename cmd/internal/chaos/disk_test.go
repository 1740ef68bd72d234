package chaos

import (
	"strings"
	"testing"
	"time"
)

func TestJudgeDisk(t *testing.T) {
	const full = "shard 1: checkpoint: write x: no space left on device: make room there, or keep fewer"
	attempt := func(saves ...Save) []*Attempt { return []*Attempt{{Name: "run"}, {Name: "run", Saved: saves}} }
	good := attempt(Save{10, ""}, Save{20, full}, Save{30, ""})
	for _, c := range []struct {
		name     string
		filled   []Filled
		attempts []*Attempt
		saved    []int64
		want     string // what is broken; or behind "+": what is kept
	}{
		{"it was full once", []Filled{{time.Second, []int64{10}, []int64{10}, nil}}, good, []int64{10, 30}, "+full 1 times; 1 checkpoints failed, 2 were written"},
		{"never", nil, attempt(Save{10, ""}), []int64{10}, "+full 0 times; 0 checkpoints failed, 1 were written"},
		{"before the first checkpoint", []Filled{{time.Second, nil, nil, nil}}, good, []int64{30}, "+full 1 times; 1 checkpoints failed, 2 were written"},
		{"an older one was removed", []Filled{{time.Second, []int64{5, 10}, []int64{10, 12}, nil}}, good, []int64{12, 30}, "+full 1 times; 1 checkpoints failed, 2 were written"},
		{"the last one is gone", []Filled{{time.Second, []int64{5, 10}, []int64{5}, nil}}, good, []int64{10, 30}, "the checkpoint of version 10 did not survive a full disk"},
		{"all are gone", []Filled{{time.Second, []int64{0}, nil, nil}}, good, []int64{10, 30}, "the checkpoint of version 0 did not survive a full disk"},
		{"one is broken meanwhile", []Filled{{time.Second, []int64{10}, []int64{10}, []string{"ckpt: checksum"}}}, good, []int64{10, 30}, "while the disk was full: ckpt: checksum"},
		{"nothing is written later", []Filled{{time.Second, []int64{10}, []int64{10}, nil}}, good, []int64{10}, "no checkpoint was written after the disk had room again"},
		{"nothing at all", []Filled{{time.Second, nil, nil, nil}}, good, nil, "no checkpoint was written after the disk had room again"},
		{"nothing later than the second time", []Filled{{time.Second, []int64{10}, []int64{10}, nil}, {time.Second, []int64{30}, []int64{30}, nil}}, good, []int64{10, 30}, "no checkpoint was written after the disk had room again"},
		{"no help", nil, attempt(Save{10, "write x: no space left on device"}), []int64{10}, "run: the checkpoint of version 10 failed, and nothing says what helps: write x: no space left on device"},
		{"another reason", nil, attempt(Save{10, "permission denied"}, Save{20, "permission denied"}), []int64{10}, "run: the checkpoint of version 10 failed for another reason: permission denied (and 1 more)"},
		{"nobody noticed", []Filled{{10*time.Second + 1, []int64{10}, []int64{10}, nil}}, attempt(Save{10, ""}, Save{30, ""}), []int64{10, 30}, "the disk was full for 10s, and no checkpoint failed"},
		{"too short to be noticed", []Filled{{10 * time.Second, []int64{10}, []int64{10}, nil}}, attempt(Save{10, ""}, Save{30, ""}), []int64{10, 30}, "+full 1 times; 0 checkpoints failed, 2 were written"},
	} {
		got := JudgeDisk(c.filled, c.attempts, c.saved, time.Second)
		if want, kept := strings.CutPrefix(c.want, "+"); got.OK != kept || got.Detail != want {
			t.Errorf("%s: %v, %s", c.name, got.OK, got.Detail)
		}
	}
	if got := JudgeDisk([]Filled{{time.Hour, nil, nil, nil}}, attempt(Save{30, ""}), []int64{30}, 0); !got.OK {
		t.Errorf("without checkpoints on the way: %s", got.Detail)
	}
}

func TestReadSaves(t *testing.T) {
	l := Read([]byte(`{"type":"start","format":1}`+"\n"+`{"type":"checkpoint","t":1,"id":"ckpt-1","version":7,"took":1}`+"\n"+`{"type":"checkpoint","t":1,"id":"ckpt-2","version":9,"took":1,"error":"no"}`+"\n"), "log")
	if len(l.problems) > 0 || len(l.Saved) != 2 || l.Saved[0] != (Save{7, ""}) || l.Saved[1] != (Save{9, "no"}) {
		t.Errorf("%+v", l)
	}
}
