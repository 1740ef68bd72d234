package pgns

// Sizes of a Change's sample.
const (
	changeLine  = 16  // coordinates that are taken together: a line of the cache
	changeLines = 256 // longer vectors are sampled, about this many lines,
	changeMost  = 512 // but at least one of this many
)

// Change tells |g₂ − g₁|², how much one worker's gradient differs from its last one,
// from a sample of the coordinates: one line of 16 coordinates out of k, times k.
// k is 1, which is exact, below 8192 coordinates, grows with the vector, and is at most
// 512. So it keeps, and reads, a 512th of a gradient or 32 KiB, whichever is more.
//
// The lines that are taken move on by one from call to call. With Y_c the sum of
// (g₂ − g₁)² over the lines c, c+k, c+2k, … an answer is k·Y_c, and over k calls each
// c has its turn: the mean over c is Σ Y_c = |g₂ − g₁|², without bias. The variance of
// a single answer is k·Σ_c (Y_c − Σ Y/k)²: of n/k coordinates of about the same size a
// relative standard deviation of √(2k/n), and more where few coordinates make up
// most of the difference (systematic sampling: W. G. Cochran, Sampling Techniques, 3rd
// edition, Wiley 1977, chapter 8). [Pair] holds an answer to what the norms allow.
//
// The zero Change is ready to use.
type Change struct {
	kept   []float32 // lines of the last gradient, those of turn
	turn   int
	length int // of the last gradient; 0: there was none
}

// Next takes in a gradient and copies what it needs. ok is false without one
// of that length before. It does not allocate but for the first gradient of a length.
func (c *Change) Next(g []float32) (diff2 float64, ok bool) {
	k := stride(len(g))
	if ok = c.length == len(g) && c.length > 0; ok {
		i := 0
		for at := c.turn * changeLine; at < len(g); at += k * changeLine {
			line := g[at:min(at+changeLine, len(g))]
			old := c.kept[i:][:len(line)]
			i += len(line)
			var even, odd float32
			for len(line) >= 2 && len(old) >= 2 {
				d, e := line[0]-old[0], line[1]-old[1]
				even += d * d
				odd += e * e
				line, old = line[2:], old[2:]
			}
			if len(line) == 1 {
				even += (line[0] - old[0]) * (line[0] - old[0])
			}
			diff2 += float64(even) + float64(odd)
		}
		diff2 *= float64(k)
		c.turn = (c.turn + 1) % k
	} else if c.length != len(g) {
		c.length, c.turn = len(g), 0
		c.kept = make([]float32, 0, ((len(g)+changeLine-1)/changeLine+k-1)/k*changeLine)
	}
	c.kept = c.kept[:0]
	for at := c.turn * changeLine; at < len(g); at += k * changeLine {
		c.kept = append(c.kept, g[at:min(at+changeLine, len(g))]...)
	}
	return diff2, ok
}

// stride returns k: one in k lines is sampled.
func stride(n int) int {
	return min(max((n+changeLine-1)/changeLine/changeLines, 1), changeMost)
}
