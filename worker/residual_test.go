package worker

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"star/coord/session"
	"star/job"
	"star/train/checkpoint"
	"star/transport/wire"
)

// However many workers go on, and whatever their gradients weigh, the sum over the workers of weight times what is left
// out stays what it was, and each file is taken up once. A worker that goes on as before takes up its own file,
// unchanged.
func TestSharesKeepTheSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before := rapid.IntRange(1, 9).Draw(t, "workers before")
		now := rapid.IntRange(1, 9).Draw(t, "workers now")
		share := rapid.Float64Range(0.01, 1)
		var files []checkpoint.ResidualFile
		var left []float64
		var sum float64
		for w := range before {
			if rapid.Bool().Draw(t, "has none") && before > 1 {
				continue
			}
			f := checkpoint.ResidualFile{Worker: w, Weight: share.Draw(t, "weight before")}
			files = append(files, f)
			left = append(left, rapid.Float64Range(-10, 10).Draw(t, "left"))
			sum += f.Weight * left[len(left)-1]
		}
		var got float64
		taken := make([]int, len(files))
		for w := range now {
			c := share.Draw(t, "weight now")
			for _, s := range shares(files, w, c, func(worker int) int { return worker % now }) {
				for i, f := range files {
					if f.Worker == s.worker {
						taken[i]++
						got += c * float64(s.factor) * left[i]
					}
				}
			}
		}
		for i, n := range taken {
			if n != 1 {
				t.Fatalf("the residual of worker %d is taken up %d times", files[i].Worker, n)
			}
		}
		if math.Abs(got-sum) > 1e-4*(1+math.Abs(sum)) {
			t.Fatalf("the sum is %v, was %v", got, sum)
		}
		for _, f := range files {
			if f.Worker < now {
				if own := shares(files, f.Worker, f.Weight, func(worker int) int { return worker % now }); own[0].factor != 1 && own[0].worker == f.Worker {
					t.Fatalf("worker %d scales its own residual by %v", f.Worker, own[0].factor)
				}
			}
		}
	})
}

// A worker counts shares by the job's batch if the coordinator says it, and by its own --batch otherwise.
func TestEqualShares(t *testing.T) {
	for _, c := range []struct {
		own, told, samples int
		want               float64
	}{{32, 128, 128, 1}, {32, 128, 64, .5}, {32, 0, 64, 2}} {
		w := &worker{job: &job.Job{Batch: c.own}, member: &session.Member{Welcome: wire.Welcome{Batch: c.told}}}
		if got := w.share(c.samples); got != c.want {
			t.Errorf("with --batch %d in a job of %d, %d samples are %v shares, want %v", c.own, c.told, c.samples, got, c.want)
		}
	}
}

// How many workers begin follows from what the first release says of the round; else all come that may.
func TestWorkersOf(t *testing.T) {
	for _, c := range []struct {
		total       int64
		batch, most int
		want        int
	}{
		{24, 8, 3, 3}, {16, 8, 3, 2}, {8, 8, 4, 1}, // fewer have come than there may be
		{0, 8, 3, 3}, {0, 0, 0, 1}, // it does not say
		{25, 8, 3, 3}, {24, 7, 3, 3}, // uneven shares
	} {
		if got := workersOf(c.total, c.batch, c.most); got != c.want {
			t.Errorf("a round of %d in batches of %d, at most %d workers: %d begin, want %d", c.total, c.batch, c.most, got, c.want)
		}
	}
}
