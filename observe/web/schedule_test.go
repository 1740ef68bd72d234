package web

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"star/runlog"
)

// What a schedule says is data and nothing else, and lists of nothing are lists.
func TestSchedules(t *testing.T) {
	s := Schedules{Title: evil, Schedules: []Schedule{{Policy: evil, Headline: evil, Names: []string{evil}, Bars: []Bar{{0, 0, 1, 0, -1}}}}}
	s.Schedules[0].Queue.Add(ScheduleJob{Job: evil, Why: evil, Deadline: runlog.Number(math.NaN())}, 1)
	s.Schedules[0].Queue.Add(ScheduleJob{Job: "more"}, 1)
	var b bytes.Buffer
	if err := ReportSchedules(&b, s); err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{evil, `alert("w")`, ` src="`, `<link rel="stylesheet"`} {
		if strings.Contains(b.String(), bad) {
			t.Errorf("the report has %q", bad)
		}
	}
	data := regexp.MustCompile(`(?s)<script type="application/json" id="view">(.*?)</script>`).FindSubmatch(b.Bytes())
	if data == nil {
		t.Fatal("no data")
	}
	if bytes.Contains(data[1], []byte(`":null`)) && !bytes.Contains(data[1], []byte(`"deadline":null`)) {
		t.Errorf("a list is null: %s", data[1])
	}
	var v struct {
		Page int
		Schedules
	}
	if err := json.Unmarshal(data[1], &v); err != nil || v.Page != page || v.Schedules.Schedules[0].Queue.Count != 2 || len(v.Schedules.Schedules[0].Queue.Jobs) != 1 || v.Schedules.Schedules[0].Names[0] != evil || v.Schedules.Schedules[0].Ended.Jobs == nil {
		t.Errorf("%v, %+v", err, v)
	}

	live := NewSchedules(Schedules{Title: "first", Live: true, Schedules: []Schedule{{}}})
	srv := httptest.NewServer(live.Handler(nil))
	defer srv.Close()
	defer live.Close()
	get := func(path string) string {
		r, err := srv.Client().Get(srv.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, _ := io.ReadAll(r.Body)
		if r.StatusCode != 200 || !strings.HasPrefix(r.Header.Get("Content-Security-Policy"), "default-src 'none'; script-src 'self';") {
			t.Errorf("%s: %d, %v", path, r.StatusCode, r.Header)
		}
		return string(text)
	}
	if page := get("/"); !strings.Contains(page, `src="schedule.js"`) {
		t.Errorf("the page is %.300s", page)
	}
	if script := get("/schedule.js"); regexp.MustCompile(`innerHTML|document\.write|https?://`).MatchString(script) {
		t.Error("the script writes HTML, or asks another host")
	}
	if !strings.Contains(get("/view.json"), `"title":"first"`) {
		t.Error("the first one is not shown")
	}
	live.Show(Schedules{Title: "second", Schedules: []Schedule{{}}})
	if !strings.Contains(get("/view.json"), `"title":"second"`) {
		t.Error("the second one is not shown")
	}
}
