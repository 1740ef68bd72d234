package web

import (
	"io"
	"net/http"

	"star/runlog"
)

// Tables is a page of tables, with at most one chart: JSON. The program that makes it words all cells.
type Tables struct {
	Title    string      `json:"title"`
	Subtitle string      `json:"subtitle"`
	Headline string      `json:"headline"`
	Bad      bool        `json:"bad"`
	Live     bool        `json:"live"` // it continues
	Tables   []Table     `json:"tables"`
	Chart    *TableChart `json:"chart"`
}

// Table is one of them.
type Table struct {
	Title string     `json:"title"`
	Heads []TableCol `json:"heads"`
	Rows  []TableRow `json:"rows"`
	Empty string     `json:"empty"` // in the place of no rows
}

// TableCol is a column. Class is n (numbers), text (long texts) or empty.
type TableCol struct {
	Name  string `json:"name"`
	Class string `json:"class"`
}

// TableRow is a row; Bad rows stand out.
type TableRow struct {
	Cells []string `json:"cells"`
	Bad   bool     `json:"bad"`
}

// TableChart is a chart of lines over the same X.
type TableChart struct {
	Title string            `json:"title"`
	X     []float64         `json:"x"`
	Names []string          `json:"names"`
	Lines [][]runlog.Number `json:"lines"`
}

// encode writes the page on one line. Lists of nothing are lists.
func (t Tables) encode() []byte {
	t.Tables = append([]Table{}, t.Tables...)
	for i := range t.Tables {
		t.Tables[i].Heads, t.Tables[i].Rows = list(t.Tables[i].Heads), list(t.Tables[i].Rows)
	}
	return numbered(struct {
		Page int `json:"page"`
		Tables
	}{page, t})
}

// LiveTables are tables that may change, for any number of readers.
type LiveTables struct {
	feed
	now Tables
}

// NewTables begins with these.
func NewTables(t Tables) *LiveTables {
	l := &LiveTables{now: t}
	l.feed = newFeed(func() ([]byte, bool) { return l.now.encode(), !l.now.Live })
	return l
}

// Show shows others from now on.
func (l *LiveTables) Show(t Tables) {
	l.mu.Lock()
	l.now, l.dirty = t, true
	l.mu.Unlock()
	l.Wake()
}

// Handler serves the page at the paths below it: the page and its parts, events (the views), and view.json.
func (l *LiveTables) Handler() http.Handler { return l.handler("tables.html", nil) }

// ReportTables writes the page as one file that needs no server and no network.
func ReportTables(w io.Writer, t Tables) error {
	return report(w, "tables.html", "tables.js", t.encode())
}
