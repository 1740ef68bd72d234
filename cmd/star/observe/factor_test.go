package observe

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"star/observe/web"
	"star/runlog"
)

// The page and star explain say the same factor of one episode, while the episode lasts and when it is over: for a job
// with differing verdicts of slow workers in its log, and for one without.
func TestOneFactorOfAnEpisode(t *testing.T) {
	verdict := func(event string, step int, slowdown float64) string {
		return fmt.Sprintf(`{"type":"verdict","t":%g,"worker":2,"event":%q,"step":%d,"since":5,"slowdown":%g,"cause":"compute"}`, 40.0, event, step, slowdown)
	}
	log := func(own bool, more ...string) string {
		var b strings.Builder
		b.WriteString(`{"type":"start","format":1,"program":"star 0.1.0","job":"j","config":{"arch":"ps"}}
{"type":"train","t":1,"workers":4,"shards":1,"model":"m","data":"d","limit":4000,"version":0,"plan":"ssgd"}
`)
		at := 1.0
		for k := range 100 {
			busy, wait := [4]float64{1, 1, 1, 1}, 0.0
			switch {
			case own: // by what its verdicts say
			case k >= 30 && k < 50:
				busy[2], wait = 3, 2
			case k >= 50 && k < 80:
				busy[2], wait = 2, 1
			}
			for w, s := range busy {
				idle := wait
				if w == 2 {
					idle = 0
				}
				fmt.Fprintf(&b, `{"type":"record","t":%g,"worker":%d,"step":%d,"basis":%d,"at":%g,"compute":%g,"wait":%g,"samples":10}`+"\n", at+s, w, k, k, at+s, s, idle)
			}
			at += 1 + wait
			fmt.Fprintf(&b, `{"type":"fire","t":%g,"seq":%d,"version":%d,"workers":[0,1,2,3],"staleness":[0,0,0,0],"samples":%d}`+"\n", at, k+1, k+1, 40*(k+1))
		}
		return b.String() + strings.Join(more, "\n") + "\n"
	}
	summary, err := json.Marshal(runlog.Result{Arch: "ps", Mode: "ssgd", Workers: 4, Updates: 100})
	if err != nil {
		t.Fatal(err)
	}
	over := `{"type":"summary",` + string(summary[1:])
	for name, c := range map[string]struct {
		log  string
		want float64 // 0: whatever both say
	}{
		"over":  {log(true, verdict("slow", 10, 2), verdict("changed", 20, 3.2), verdict("changed", 30, 9), verdict("recovered", 40, 5), over), 3.2},
		"open":  {log(true, verdict("slow", 10, 2), verdict("changed", 20, 3)), 2.5},
		"found": {log(false, over), 0},
	} {
		path := filepath.Join(t.TempDir(), "run.jsonl")
		if err := os.WriteFile(path, []byte(c.log), 0o644); err != nil {
			t.Fatal(err)
		}
		story, err := readStory(path)
		if err != nil {
			t.Fatal(err)
		}
		state := web.NewState()
		if _, err := runlog.Read(strings.NewReader(c.log), name, state.Line); err != nil {
			t.Fatal(err)
		}
		page := state.View()
		if len(story.Episodes) != 1 || len(page.Episodes) != 1 {
			t.Fatalf("%s: %d episodes by star explain, %d on the page; want 1", name, len(story.Episodes), len(page.Episodes))
		}
		got, shown := story.Episodes[0].Slowdown, float64(page.Episodes[0].Slowdown)
		if got != shown || c.want > 0 && got != c.want {
			t.Errorf("%s: %.3f by star explain, %.3f on the page, want %g", name, got, shown, c.want)
		}
		if says := fmt.Sprintf("%.1fx slow", got); !strings.Contains(page.Headline, says) {
			t.Errorf("%s: the page begins with %q, want %s", name, page.Headline, says)
		}
	}
}
