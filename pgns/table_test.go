package pgns

import (
	"errors"
	"math"
	"os"
	"testing"

	"pgregory.net/rapid"
)

// A few rows of the tables of the STAR artefact (gradient_validation), as facts: set,
// batch, epoch, |G|², tr Σ. Other epochs are filled with the last one above.
var rows = []struct {
	set          string
	batch, epoch int
	sqr, vari    float64
}{
	{"A", 64, 0, 4.39515495300293, 302.4104480743408},
	{"A", 128, 0, 1.5302727222442627, 567.433167219162},
	{"A", 512, 0, 1.1237233877182007, 2622.124811768532},
	{"A", 1024, 0, 0.8176233768463135, 4245.615970373154},
	{"A", 256, 2, 1.5115292072296145, 590.8035342693329},
	{"A", 512, 2, 1.0483498573303225, 1218.6727194786072},
	{"A", 128, 7, 0.7465354204177856, 309.14817893505096},
	{"A", 256, 7, 0.8530092239379883, 400.1028928756714},
	{"A", 1024, 9, 0.912542998790741, 1031.9213193058968},
	{"D", 512, 0, 2.504788875579834, 977.5759606361388},
	{"D", 1024, 0, 1.1923927068710327, 1318.6710106134417},
	{"V", 512, 0, 23.37602806091309, 2676.553955078125},
	{"V", 1024, 0, 7.590128421783447, 11444.798828125},
}

// at makes the table of the rows that a set has of one epoch.
func at(t testing.TB, set string, epoch int) *Table {
	t.Helper()
	tab := &Table{rows: map[int][]Moments{}, has: map[int][]bool{}}
	for _, r := range rows {
		if r.set == set && r.epoch == epoch {
			ms := make([]Moments, 10)
			ms[epoch] = Moments{r.sqr, r.vari}
			tab.rows[r.batch] = ms
			tab.batches = append(tab.batches, r.batch)
		}
	}
	return tab
}

// pgns.py of the STAR artefact, as run, on these rows.
func TestPublishedInterpolation(t *testing.T) {
	for _, c := range []struct {
		set   string
		batch float64
		epoch int
		want  float64
	}{
		{"A", 64, 0, 68.80541216589486},
		{"A", 96, 0, 146.79845286563477},
		{"A", 896, 0, 4294.3020067800035},
		{"A", 384, 2, 706.8600539764183},
		{"A", 160, 7, 429.26365596940246},
		{"D", 896, 0, 811.1831247299917},
		{"V", 896, 0, 802.0330892842974},
	} {
		m, err := at(t, c.set, c.epoch).Interpolate(c.batch, float64(c.epoch))
		if err != nil || !near(m.Var/m.Grad2, c.want, 1e-9) {
			t.Errorf("%s, batch %v, epoch %d: φ %v, want %v (%v)", c.set, c.batch, c.epoch, m.Var/m.Grad2, c.want, err)
		}
	}
}

// This many updates of the given samples make the progress of one with an exact gradient: 1 + φ/B (McCandlish et al.,
// appendix D; Pollux, section 3.1).
func TestPublishedUpdates(t *testing.T) {
	for _, c := range []struct {
		current       float64
		epoch         int
		samples, want float64
	}{
		{1024, 0, 128, 41.567424694334456},
		{1024, 0, 512, 11.141856173583614},
		{1024, 0, 896, 6.7953463849049225},
		{1024, 0, 1024, 6.070928086791807},
		{1024, 9, 1024, 2.1043158127562958},
		{896, 0, 128, 34.54923442796878},
	} {
		m, err := at(t, "A", c.epoch).Interpolate(c.current, float64(c.epoch))
		if got := 1 + m.Var/m.Grad2/c.samples; err != nil || !near(got, c.want, 1e-9) {
			t.Errorf("batch %v, epoch %d, %v samples: %v updates, want %v (%v)", c.current, c.epoch, c.samples, got, c.want, err)
		}
	}
	for _, b := range []float64{0, 32, 2048, math.NaN()} {
		if _, err := at(t, "A", 0).Interpolate(b, 0); err == nil {
			t.Errorf("batch %v: no error", b)
		}
	}
}

// Outside its batches the table goes on smoothly, and never to nonsense.
func TestExtrapolation(t *testing.T) {
	a := at(t, "A", 0)
	for _, end := range []float64{64, 1024} {
		m, _ := a.Interpolate(end, 0)
		for _, b := range []float64{end * 0.999999, end, end * 1.000001} {
			if got, err := a.Scale(b, 0); err != nil || !near(got, m.Var/m.Grad2, 1e-4) {
				t.Errorf("batch %v: φ %v beside %v (%v)", b, got, m.Var/m.Grad2, err)
			}
		}
	}
	// A grows 5.4-fold from batch 64 to 128: held to proportion.
	if got, _ := a.Scale(32, 0); !near(got, 68.80541216589486/2, 1e-9) {
		t.Errorf("batch 32: φ %v", got)
	}
	for _, b := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if _, err := a.Scale(b, 0); err == nil {
			t.Errorf("batch %v: no error", b)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		b := math.Exp(rapid.Float64Range(-2, 20).Draw(t, "log b"))
		lo, err1 := a.Scale(b, 0)
		hi, err2 := a.Scale(2*b, 0)
		if err1 != nil || err2 != nil || !(lo > 0) || math.IsInf(hi, 1) {
			t.Fatalf("batch %v: φ %v and %v (%v, %v)", b, lo, hi, err1, err2)
		}
		if (2*b < 64 || b > 1024) && (hi < lo*(1-1e-9) || hi > 2*lo*(1+1e-9)) {
			t.Errorf("batch %v: φ goes from %v to %v", b, lo, hi)
		}
	})
}

func TestParseTable(t *testing.T) {
	text, err := os.ReadFile("testdata/small.csv")
	if err != nil {
		t.Fatal(err)
	}
	tab, err := ParseTable(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ batch, epoch, want float64 }{
		{64, 0, 50}, {64, 0.49, 50}, {64, 0.5, 100}, {64, 7, 100}, {128, -3, 80}, {96, 0, (100. + 320) / 2 / ((2 + 4) / 2.)},
	} {
		if got, err := tab.Scale(c.batch, c.epoch); err != nil || !near(got, c.want, 1e-12) {
			t.Errorf("batch %v, epoch %v: φ %v, want %v (%v)", c.batch, c.epoch, got, c.want, err)
		}
	}
	for _, bad := range []string{
		"", "batch,epoch,grad_sqr\n1,0,1\n", "batch,epoch,grad_sqr,grad_var\n", "batch,epoch,grad_sqr,grad_var\n0,0,1,1\n",
		"batch,epoch,grad_sqr,grad_var\n1,1,1,1\n", "batch,epoch,grad_sqr,grad_var\n1,0,1,1\n1,0,1,1\n",
		"batch,epoch,grad_sqr,grad_var\n1,0,-1,1\n", "batch,epoch,grad_sqr,grad_var\n1,0,NaN,1\n",
		"batch,epoch,grad_sqr,grad_var\n1,0,x,1\n", "batch,epoch,grad_sqr,grad_var\n1,0,1\n", "batch,epoch,grad_sqr,grad_var\n1,99999999,1,1\n",
	} {
		if _, err := ParseTable([]byte(bad)); !errors.Is(err, ErrTable) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func FuzzParseTable(f *testing.F) {
	f.Add([]byte("batch,epoch,grad_sqr,grad_var\n64,0,2,100\n64,1,2,200\n"))
	f.Add([]byte("epoch_idx,batch,grad_sqr,grad_var\n0,64,2,100\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		tab, err := ParseTable(text)
		if err != nil {
			return
		}
		if s, err := tab.Scale(256, 1); err != nil || !(s >= 0) {
			t.Errorf("φ %v, %v", s, err)
		}
	})
}
