package data

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"star/train"
)

// counting is a data set with the number of the sample as its one feature. It counts fills, and fails for one sample.
type counting struct {
	n, fills, bad int
	gate          chan struct{} // if set, each fill waits for it
}

func (c *counting) Name() string       { return "counting/train" }
func (c *counting) Len() int           { return c.n }
func (c *counting) Input() train.Input { return train.Input{Shape: []int{1}, Classes: 2} }

func (c *counting) Fill(b *train.Batch, indices []int) error {
	if c.gate != nil {
		<-c.gate
	}
	c.fills++
	b.X, b.Y, b.Samples = grow(b.X, len(indices)), grow(b.Y, len(indices)), len(indices)
	for i, index := range indices {
		if index == c.bad {
			return errors.New("bad sample")
		}
		b.X[i] = float32(index)
	}
	return nil
}

func next(t *testing.T, l *Loader, start int64, count int) []float32 {
	t.Helper()
	b, err := l.Next(start, count)
	if err != nil {
		t.Fatal(err)
	}
	return b.X
}

func TestLoaderBatches(t *testing.T) {
	for _, c := range []struct {
		name       string
		hint       func(l *Loader)
		start      int64
		count      int
		want       []float32
		totalFills int
	}{
		{"no hint", func(*Loader) {}, 2, 2, []float32{2, 3}, 2},
		{"right hint", func(l *Loader) { l.Hint(2, 2) }, 2, 2, []float32{2, 3}, 2},
		{"same hint twice", func(l *Loader) { l.Hint(2, 2); l.Hint(2, 2) }, 2, 2, []float32{2, 3}, 2},
		{"other start", func(l *Loader) { l.Hint(4, 2) }, 2, 2, []float32{2, 3}, 3},
		{"other count", func(l *Loader) { l.Hint(2, 3) }, 2, 2, []float32{2, 3}, 3},
		{"corrected hint", func(l *Loader) { l.Hint(4, 2); l.Hint(2, 2) }, 2, 2, []float32{2, 3}, 3},
		{"what was handed out already", func(*Loader) {}, 0, 2, []float32{0, 1}, 2},
		{"over the end of the epoch", func(l *Loader) { l.Hint(8, 4) }, 8, 4, []float32{8, 9, 0, 1}, 2},
		{"nonsense hint", func(l *Loader) { l.Hint(-1, 4); l.Hint(0, 0) }, 2, 1, []float32{2}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			ds := &counting{n: 10, bad: -1}
			l := NewLoader(ds, Stream{Ordered: true})
			defer l.Close()
			first := next(t, l, 0, 2)
			c.hint(l)
			if !slices.Equal(first, []float32{0, 1}) {
				t.Errorf("the batch in use changed under a hint: %v", first)
			}
			if got := next(t, l, c.start, c.count); !slices.Equal(got, c.want) {
				t.Errorf("batch %v, want %v", got, c.want)
			}
			if ds.fills != c.totalFills {
				t.Errorf("%d fills, want %d", ds.fills, c.totalFills)
			}
		})
	}
}

// A hinted batch is filled while the caller does something else, and Next waits
// for the rest of it.
func TestLoaderPrefetches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ds := &counting{n: 10, bad: -1, gate: make(chan struct{})}
		l := NewLoader(ds, Stream{Ordered: true})
		l.Hint(0, 2)
		synctest.Wait() // the filling goroutine is at the gate, and we are not
		go func() { ds.gate <- struct{}{} }()
		if got := next(t, l, 0, 2); !slices.Equal(got, []float32{0, 1}) {
			t.Errorf("batch %v", got)
		}
		if ds.fills != 1 {
			t.Errorf("%d fills, want 1", ds.fills)
		}
		l.Close() // synctest fails if the goroutine is still there
	})
}

// A batch belongs to the caller, which may change it, and is made again when its range is asked for again.
func TestLoaderForgetsWhatItHandedOut(t *testing.T) {
	l := NewLoader(&counting{n: 10, bad: -1}, Stream{Ordered: true})
	defer l.Close()
	for range 4 {
		b := next(t, l, 0, 2)
		if !slices.Equal(b, []float32{0, 1}) {
			t.Fatalf("batch %v, want [0 1]", b)
		}
		clear(b)
	}
}

func TestLoaderErrors(t *testing.T) {
	ds := &counting{n: 10, bad: 3}
	l := NewLoader(ds, Stream{Ordered: true})
	l.Hint(2, 2)
	if _, err := l.Next(2, 2); err == nil || err.Error() != "bad sample" {
		t.Errorf("error of a hinted batch: %v", err)
	}
	if got := next(t, l, 4, 1); !slices.Equal(got, []float32{4}) {
		t.Errorf("after an error: %v", got)
	}
	for _, c := range []struct {
		start int64
		count int
	}{{-1, 2}, {0, 0}, {0, -3}} {
		if _, err := l.Next(c.start, c.count); err == nil || !strings.Contains(err.Error(), "counting/train") {
			t.Errorf("Next(%d, %d): %v", c.start, c.count, err)
		}
	}
	for range 2 {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	l.Hint(0, 1)
	if _, err := l.Next(0, 1); err == nil || !strings.Contains(err.Error(), "closed") {
		t.Errorf("Next of a closed loader: %v", err)
	}
}

func TestLoaderDoesNotAllocate(t *testing.T) {
	ds, _ := open(t, "digits:n=200")
	l := NewLoader(ds, Stream{Seed: 1})
	defer l.Close()
	q := int64(0)
	step := func() {
		if _, err := l.Next(q, 20); err != nil {
			t.Fatal(err)
		}
		q += 20
		l.Hint(q, 20)
	}
	for range 30 {
		step()
	}
	if got := testing.AllocsPerRun(50, step); got != 0 {
		t.Errorf("%v allocations per batch", got)
	}
}
