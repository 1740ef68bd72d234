package baseline

import "math"

// NARX is a non-linear auto-regressive network with exogenous inputs and one hidden layer:
// out = w2·tanh(W1·x + b1) + b2 (Lin, Horne, Tino, Giles: Learning Long-Term Dependencies in NARX Recurrent Neural
// Networks. IEEE Trans. Neural Networks 7, 1996).
//
// LB-BSP feeds it past speeds and available processor time and memory, those of the coming iteration included. The
// width of the layer, the number of past values and the training are ours: the paper was not at hand.
type NARX struct {
	W1 [][]float64 // by hidden unit, by input
	B1 []float64
	W2 []float64
	B2 float64
}

// Forward returns the output for x, and the hidden layer.
func (n *NARX) Forward(x []float64) (out float64, hidden []float64) {
	hidden = make([]float64, len(n.W2))
	out = n.B2
	for h, row := range n.W1 {
		a := n.B1[h]
		for i, w := range row {
			a += w * x[i]
		}
		hidden[h] = math.Tanh(a)
		out += n.W2[h] * hidden[h]
	}
	return out, hidden
}

const (
	narxDelay  = 2    // d: past values of each series
	narxHidden = 16   // units
	narxRate   = 1e-3 // of Adam
	narxWindow = 256  // samples that it is trained on, the newest ones
	narxPasses = 4    // samples for each new one
	narxWarm   = 32   // samples before its prediction is used
)

// narxInputs: d past speeds, and of processor time and memory the present value and d past ones.
const narxInputs = narxDelay + 2*(narxDelay+1)

// foresight is one worker's NARX, trained while the job runs. A moving average replaces it until it has seen enough
// samples, and while its predictions are worse.
type foresight struct {
	net         NARX
	m1, m2      []float64 // moments of Adam
	steps       float64
	ema         EMA
	top         float64 // greatest speed: inputs are scaled to 0..1
	speeds      []float64
	cpus, mems  []float64 // one for each of speeds
	samples     int
	turn        int
	errNet, eMA float64 // smoothed squared errors of the network and of the moving average
	last        float64 // the network's prediction of the next speed
	said        bool
}

// newForesight begins with small weights that depend on the seed only.
func newForesight(seed uint64, weight float64) *foresight {
	f := &foresight{ema: EMA{Weight: weight}}
	state := seed*0x9e3779b97f4a7c15 + 1
	draw := func(scale float64) float64 { // splitmix64 (Steele, Lea, Flood, OOPSLA 2014)
		state += 0x9e3779b97f4a7c15
		z := state
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		z ^= z >> 31
		return scale * (2*float64(z>>11)/(1<<53) - 1)
	}
	f.net = NARX{W1: make([][]float64, narxHidden), B1: make([]float64, narxHidden), W2: make([]float64, narxHidden)}
	for h := range f.net.W1 {
		f.net.W1[h] = make([]float64, narxInputs)
		for i := range f.net.W1[h] {
			f.net.W1[h][i] = draw(math.Sqrt(6.0 / (narxInputs + narxHidden)))
		}
		f.net.W2[h] = draw(math.Sqrt(6.0 / (narxHidden + 1)))
	}
	size := narxHidden*narxInputs + 2*narxHidden + 1
	f.m1, f.m2 = make([]float64, size), make([]float64, size)
	return f
}

func (f *foresight) observe(speed, cpu, memory float64) {
	if f.said {
		f.errNet = 0.9*f.errNet + 0.1*(f.last-speed)*(f.last-speed)
		d := f.ema.Predict() - speed
		f.eMA = 0.9*f.eMA + 0.1*d*d
	}
	f.ema.Observe(speed)
	f.top = max(f.top, speed)
	f.speeds, f.cpus, f.mems = append(f.speeds, speed), append(f.cpus, cpu), append(f.mems, memory)
	if over := len(f.speeds) - narxWindow - narxDelay; over > 0 {
		f.speeds, f.cpus, f.mems = f.speeds[over:], f.cpus[over:], f.mems[over:]
	}
	f.samples++
	first, n := narxDelay, len(f.speeds)
	for k := range narxPasses {
		if n <= first {
			break
		}
		at := n - 1 // the newest, then the others in turn
		if k > 0 {
			f.turn = (f.turn + 1) % (n - first)
			at = first + f.turn
		}
		f.train(f.input(at), f.speeds[at]/f.top)
	}
	if n >= narxDelay {
		out, _ := f.net.Forward(f.input(n))
		f.last, f.said = out*f.top, true
	}
}

// input is x for speed number at. If at is the next iteration, the newest processor time and memory replace those of
// the coming one.
func (f *foresight) input(at int) []float64 {
	x := make([]float64, 0, narxInputs)
	for d := 1; d <= narxDelay; d++ {
		x = append(x, f.speeds[at-d]/f.top)
	}
	for _, series := range [][]float64{f.cpus, f.mems} {
		for d := range narxDelay + 1 {
			x = append(x, series[min(at-d, len(series)-1)])
		}
	}
	return x
}

// train makes one step of Adam (Kingma, Ba, ICLR 2015) on the squared error.
func (f *foresight) train(x []float64, want float64) {
	out, hidden := f.net.Forward(x)
	e := 2 * (out - want)
	f.steps++
	k := 0
	c1, c2 := 1-math.Pow(0.9, f.steps), 1-math.Pow(0.999, f.steps)
	step := func(p *float64, g float64) {
		f.m1[k] = 0.9*f.m1[k] + 0.1*g
		f.m2[k] = 0.999*f.m2[k] + 0.001*g*g
		*p -= narxRate * (f.m1[k] / c1) / (math.Sqrt(f.m2[k]/c2) + 1e-8)
		k++
	}
	for h := range hidden {
		back := e * f.net.W2[h] * (1 - hidden[h]*hidden[h])
		for i := range x {
			step(&f.net.W1[h][i], back*x[i])
		}
		step(&f.net.B1[h], back)
		step(&f.net.W2[h], e*hidden[h])
	}
	step(&f.net.B2, e)
}

func (f *foresight) predict() float64 {
	if f.samples < narxWarm || f.errNet > f.eMA || !(f.last > 0.1*f.ema.Predict() && f.last < 10*f.ema.Predict()) {
		return f.ema.Predict()
	}
	return f.last
}
