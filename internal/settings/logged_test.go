package settings

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"
)

// A job comes back from its run log with every setting, whatever its type.
func TestFromLog(t *testing.T) {
	j := &Job{role: ForServer}
	j.declare(j.role)
	for i, it := range j.Config.items {
		text := map[string]string{"string": "word", "bool": "true", "int": "7", "float": "1e-07", "duration": "1m0.1s", "list": "3,4"}[it.kind]
		if it.secret {
			continue
		}
		if len(it.choices) > 0 {
			text = it.choices[i%len(it.choices)]
		}
		if it.kind == "bool" && it.def() == "true" {
			text = "false"
		}
		if err := it.parse([]string{text}); err != nil {
			t.Fatalf("%s: %v", it.name, err)
		}
	}
	want, err := json.Marshal(j)
	if err != nil {
		t.Fatal(err)
	}
	got, err := FromLog(want)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := json.Marshal(got); err != nil || !bytes.Equal(again, want) {
		t.Errorf("%v\n got %s\nwant %s", err, again, want)
	}
	if !got.Config.IsSet("grace") || got.Grace != time.Minute+100*time.Millisecond {
		t.Errorf("grace is %v, %s", got.Grace, got.Config.Origin("grace"))
	}
}

// A setting that a log lacks has its default, an unknown one is left out, and an invalid value is named.
func TestFromLogOfOthers(t *testing.T) {
	j, err := FromLog([]byte(`{"workers": 9, "compress": "none", "invented": [1]}`))
	if err != nil || j.Workers != 9 || j.Compress != "none" || j.Batch == 0 || j.Config.IsSet("compress") || !j.Config.IsSet("workers") {
		t.Errorf("%+v, %v", j, err)
	}
	for _, bad := range []string{`{"workers": "many"}`, `{"grace": "soon"}`, `{"shares": 3}`, `{"arch": "star"}`} {
		name := strings.Split(bad, `"`)[1]
		if _, err := FromLog([]byte(bad)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
