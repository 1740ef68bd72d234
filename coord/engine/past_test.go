package engine

import (
	"slices"
	"testing"

	"star/modes"
)

// A job that resumes past its end hands nothing out, also not what the checkpoint says is to be done again: that is
// for one that ends later, and stays in the next checkpoint. Of one that ends between, what lies before the end is
// done again.
func TestResumePastItsEnd(t *testing.T) {
	for _, c := range []struct {
		name         string
		limit        int64
		from         Progress
		handed, left []Span
	}{
		{"its end is behind", 300, Progress{Version: 20, Samples: 640, Cursor: 704, Redo: []Span{{100, 4}, {640, 64}}}, nil, []Span{{100, 4}, {640, 64}}},
		{"it ends where it was", 640, Progress{Version: 20, Samples: 640, Cursor: 704, Redo: []Span{{640, 64}}}, nil, []Span{{640, 64}}},
		{"it ends within what is to be done again", 644, Progress{Version: 20, Samples: 636, Cursor: 704, Redo: []Span{{640, 68}}}, []Span{{640, 4}}, []Span{{640, 4}, {644, 64}}},
		{"it goes on", 704, Progress{Version: 20, Samples: 696, Cursor: 704, Redo: []Span{{4, 8}}}, []Span{{4, 4}, {8, 4}}, []Span{{4, 8}}},
	} {
		for _, arch := range []string{"shards", "ring"} {
			plan, cfg := modes.ASGD(2), Config{Workers: 2, Shards: 1, Batch: 4, Limit: c.limit, From: c.from, MaxParams: 1 << 30}
			var e interface {
				Engine
				Snapshot() Snapshot
			}
			if cfg.Plan = plan; arch == "ring" {
				cfg.Plan, cfg.Shards, cfg.Ring = modes.SSGD(2), 0, &RingConfig{}
				e = NewRing(cfg)
			} else {
				e = NewShards(cfg)
			}
			var handed []Span
			for _, o := range e.Begin(nil) {
				for _, r := range o.Releases {
					if r.Count > 0 {
						handed = append(handed, Span{r.Start, r.Count})
					}
				}
			}
			if arch == "shards" && !slices.Equal(handed, c.handed) {
				t.Errorf("%s, %s: %v are handed out, want %v", c.name, arch, handed, c.handed)
			}
			if c.handed == nil && (len(handed) > 0 || !e.View().Drained() && arch == "shards") {
				t.Errorf("%s, %s: %v are handed out", c.name, arch, handed)
			}
			if r, ok := e.(*Ring); ok {
				if n := r.left(); c.handed == nil && n != 0 {
					t.Errorf("%s, ring: %d samples are to be handed out", c.name, n)
				}
			}
			if s := e.Snapshot(); c.handed == nil && !slices.Equal(s.Redo, c.left) {
				t.Errorf("%s, %s: to be done again are %v, want %v", c.name, arch, s.Redo, c.left)
			}
		}
	}
}
