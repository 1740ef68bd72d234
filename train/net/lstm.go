package net

import (
	"fmt"

	"star/internal/kernel"
)

func init() {
	register(definition{
		name:  "lstm",
		about: "language model: embedding, LSTM, linear head; the state is zero at the start of each window",
		settings: []setting{
			{"layers", 2, "LSTM layers", 1, 16},
			{"hidden", 200, "width of the LSTM", 1, 1 << 14},
			{"embed", 200, "width of the embedding", 1, 1 << 14},
			{"dropout", 0.0, "probability of dropping an element of the embedding and of each layer's output", 0, 0.95},
		},
		fits: tokenRows,
		layers: func(b *Builder, s settings) ([]Layer, error) {
			stack := newLSTMStack(b, s.int("embed"), s.int("hidden"), s.int("layers"), s.float("dropout"))
			return []Layer{stack, newHead(b, stack.steps, stack.hidden)}, nil
		},
	})
}

// lstmLayer is one layer of long short-term memory over a whole window, forward
// and backward through time, with the state zero at the window's start.
//
// With the gates stacked in PyTorch's order i, f, g, o,
//
//	a_t = W_ih x_t + b_ih + W_hh h_{t-1} + b_hh
//	i, f, o = σ(a_i), σ(a_f), σ(a_o),  g = tanh(a_g)
//	c_t = f ⊙ c_{t-1} + i ⊙ g
//	h_t = o ⊙ tanh(c_t)
//
// Everything is time-major, (steps, batch, ·), so that one step is one
// contiguous block: the input's part of a is one product over all steps, and
// only the recurrent part is taken step by step. The two bias vectors are one
// too many, their gradients are equal; they are kept because torch.nn.LSTM has
// them and its parameters then fit ours as they are.
//
// References:
//   - S. Hochreiter, J. Schmidhuber: Long Short-Term Memory. Neural Computation 9(8), 1997.
//   - F. Gers, J. Schmidhuber, F. Cummins: Learning to Forget. Neural Computation 12(10), 2000 (the forget gate).
type lstmLayer struct {
	steps, batch, in, hidden int

	bias   []float32 // (4·hidden) b_ih + b_hh; scratch of backward
	gates  []float32 // (steps, batch, 4·hidden) after the nonlinearities
	cell   []float32 // (steps, batch, hidden) c
	squash []float32 // (steps, batch, hidden) tanh(c)

	dgates []float32 // (steps, batch, 4·hidden) gradient before the nonlinearities
	dhid   []float32 // (batch, hidden) gradient of h that comes from the step after
	dcell  []float32 // (batch, hidden) gradient of c that comes from the step after
}

// newLSTMLayer makes a layer; one that is not trained cannot run backward.
func newLSTMLayer(steps, batch, in, hidden int, trained bool) *lstmLayer {
	n := steps * batch * hidden
	l := &lstmLayer{
		steps: steps, batch: batch, in: in, hidden: hidden,
		bias:   make([]float32, 4*hidden),
		gates:  make([]float32, 4*n),
		cell:   make([]float32, n),
		squash: make([]float32, n),
	}
	if trained {
		l.dgates = make([]float32, 4*n)
		l.dhid, l.dcell = make([]float32, batch*hidden), make([]float32, batch*hidden)
	}
	return l
}

// forward computes all hidden states h (steps, batch, hidden) of the inputs
// x (steps, batch, in). It keeps what backward needs, but neither h nor x.
func (l *lstmLayer) forward(h, x, wih, whh, bih, bhh []float32) {
	T, B, I, H := l.steps, l.batch, l.in, l.hidden
	for j := range l.bias {
		l.bias[j] = bih[j] + bhh[j]
	}
	affine(l.gates, x, wih, l.bias, T*B, 4*H, I)
	for t := range T {
		a := l.gates[t*B*4*H : (t+1)*B*4*H]
		if t > 0 { // h before the window is zero
			kernel.Gemm(false, true, B, 4*H, H, 1, h[(t-1)*B*H:t*B*H], H, whh, H, 1, a, 4*H)
		}
		c := l.cell[t*B*H : (t+1)*B*H]
		for b := range B {
			row := a[b*4*H : (b+1)*4*H]
			kernel.Sigmoid(row[:2*H], row[:2*H])
			kernel.Tanh(row[2*H:3*H], row[2*H:3*H])
			kernel.Sigmoid(row[3*H:], row[3*H:])
			i, f, g := row[:H], row[H:2*H], row[2*H:3*H]
			cb := c[b*H : (b+1)*H]
			if t == 0 {
				for j := range cb {
					cb[j] = i[j] * g[j]
				}
				continue
			}
			was := l.cell[((t-1)*B+b)*H:][:H]
			f, g, was = f[:len(cb)], g[:len(cb)], was[:len(cb)]
			i = i[:len(cb)]
			for j := range cb {
				cb[j] = f[j]*was[j] + i[j]*g[j]
			}
		}
		s := l.squash[t*B*H : (t+1)*B*H]
		kernel.Tanh(s, c)
		for b := range B {
			o := a[b*4*H+3*H : (b+1)*4*H]
			hb := h[(t*B+b)*H:][:H]
			sb := s[b*H : (b+1)*H]
			o, sb = o[:len(hb)], sb[:len(hb)]
			for j := range hb {
				hb[j] = o[j] * sb[j]
			}
		}
	}
}

// backward takes the gradient dh of the hidden states h that the last forward
// made of x, adds to dwih, dwhh, dbih and dbhh and overwrites dx,
// which may be dh.
func (l *lstmLayer) backward(dx, dwih, dwhh, dbih, dbhh, dh, h, x, wih, whh []float32) {
	T, B, I, H := l.steps, l.batch, l.in, l.hidden
	clear(l.dhid)
	clear(l.dcell)
	for t := T - 1; t >= 0; t-- {
		da := l.dgates[t*B*4*H : (t+1)*B*4*H]
		for b := range B {
			at := (t*B + b) * H
			row := l.gates[4*at : 4*at+4*H]
			n := H
			i, f, g, o := row[:n:n], row[H:][:n:n], row[2*H:][:n:n], row[3*H:][:n:n]
			drow := da[b*4*H : (b+1)*4*H]
			di, df, dg, do := drow[:n:n], drow[H:][:n:n], drow[2*H:][:n:n], drow[3*H:][:n:n]
			dhb, carry := dh[at:][:n:n], l.dhid[b*H:][:n:n]
			dcb := l.dcell[b*H:][:n:n]
			s := l.squash[at:][:n:n]
			if t == 0 {
				for j := range n {
					d := dhb[j] + carry[j]
					dc := dcb[j] + d*o[j]*(1-s[j]*s[j])
					di[j] = dc * g[j] * i[j] * (1 - i[j])
					df[j] = 0
					dg[j] = dc * i[j] * (1 - g[j]*g[j])
					do[j] = d * s[j] * o[j] * (1 - o[j])
				}
				continue
			}
			was := l.cell[at-B*H:][:n:n]
			for j := range n {
				d := dhb[j] + carry[j]
				dc := dcb[j] + d*o[j]*(1-s[j]*s[j])
				di[j] = dc * g[j] * i[j] * (1 - i[j])
				df[j] = dc * was[j] * f[j] * (1 - f[j])
				dg[j] = dc * i[j] * (1 - g[j]*g[j])
				do[j] = d * s[j] * o[j] * (1 - o[j])
				dcb[j] = dc * f[j]
			}
		}
		if t > 0 {
			kernel.Gemm(false, false, B, H, 4*H, 1, da, 4*H, whh, H, 0, l.dhid, H)
		}
	}
	affineGrad(dx, dwih, dbih, l.dgates, x, wih, l.bias, T*B, 4*H, I)
	kernel.Add(dbhh, l.bias)
	if T > 1 { // h before the window is zero
		kernel.Gemm(true, false, 4*H, H, (T-1)*B, 1, l.dgates[B*4*H:], 4*H, h, H, 1, dwhh, H)
	}
}

// lstmStack reads tokens, embeds them and runs layers of LSTM over the window:
// one node of the graph. Between its parts everything is time-major; the result
// is (batch, steps, hidden) again.
type lstmStack struct {
	batch, steps, embed, hidden int

	tokens []int32 // (batch, steps)
	turned []int32 // (steps, batch)
	params []*Param

	table  *Param
	layers []*lstmLayer
	drops  []*dropout  // of the embedding and of each layer's output
	x      [][]float32 // (steps, batch, ·) what each layer reads
	h      [][]float32 // (steps, batch, hidden) what each layer makes
	last   []float32   // (steps, batch, hidden) the last h after dropout
	y      []float32   // (batch, steps, hidden)
	d      []float32   // (steps, batch, max(embed, hidden)) the gradient on its way down
}

// newLSTMStack takes the parameters of torch.nn.Embedding and torch.nn.LSTM, in
// their order, with their names and their default initial distributions: N(0, 1)
// and U(−1/√hidden, 1/√hidden).
func newLSTMStack(b *Builder, embed, hidden, layers int, drop float64) *lstmStack {
	steps := b.Input[0]
	n := b.Batch * steps
	s := &lstmStack{
		batch: b.Batch, steps: steps, embed: embed, hidden: hidden,
		tokens: b.Tokens, turned: make([]int32, n),
		table: b.Param("embed.weight", Normal(1), b.Vocab, embed),
		drops: []*dropout{newDropout(b, drop, n*embed, 0)},
		x:     [][]float32{make([]float32, n*embed)},
		y:     make([]float32, n*hidden),
	}
	s.params = []*Param{s.table}
	if b.Train {
		s.d = make([]float32, n*max(embed, hidden))
	}
	in := embed
	for i := range layers {
		init := FanIn(hidden)
		s.params = append(s.params,
			b.Param(fmt.Sprintf("lstm.weight_ih_l%d", i), init, 4*hidden, in),
			b.Param(fmt.Sprintf("lstm.weight_hh_l%d", i), init, 4*hidden, hidden),
			b.Param(fmt.Sprintf("lstm.bias_ih_l%d", i), init, 4*hidden),
			b.Param(fmt.Sprintf("lstm.bias_hh_l%d", i), init, 4*hidden))
		s.layers = append(s.layers, newLSTMLayer(steps, b.Batch, in, hidden, b.Train))
		d := newDropout(b, drop, n*hidden, i+1)
		h := make([]float32, n*hidden)
		next := h
		if d.p != 0 { // the recurrence and backward read h as it was
			next = make([]float32, n*hidden)
		}
		s.drops, s.h, s.x = append(s.drops, d), append(s.h, h), append(s.x, next)
		in = hidden
	}
	s.last = s.x[layers]
	return s
}

func (s *lstmStack) Out() []int       { return []int{s.steps, s.hidden} }
func (s *lstmStack) Params() []*Param { return s.params }

// of gives the parameters of layer i: W_ih, W_hh, b_ih, b_hh.
func (s *lstmStack) of(i int) []*Param { return s.params[1+4*i : 5+4*i] }

func (s *lstmStack) Forward([]float32) []float32 {
	B, T, H := s.batch, s.steps, s.hidden
	for b := range B {
		for t := range T {
			s.turned[t*B+b] = s.tokens[b*T+t]
		}
	}
	embed(s.x[0], s.table.W, s.turned, s.embed)
	s.drops[0].forward(s.x[0])
	for i, l := range s.layers {
		p := s.of(i)
		l.forward(s.h[i], s.x[i], p[0].W, p[1].W, p[2].W, p[3].W)
		if d := s.drops[i+1]; d.p != 0 {
			copy(s.x[i+1], s.h[i])
			d.forward(s.x[i+1])
		}
	}
	for b := range B {
		for t := range T {
			copy(s.y[(b*T+t)*H:][:H], s.last[(t*B+b)*H:])
		}
	}
	return s.y
}

func (s *lstmStack) Backward(dy []float32) []float32 {
	B, T, H := s.batch, s.steps, s.hidden
	for b := range B {
		for t := range T {
			copy(s.d[(t*B+b)*H:][:H], dy[(b*T+t)*H:])
		}
	}
	for i := len(s.layers) - 1; i >= 0; i-- {
		dh, dx := s.d[:len(s.h[i])], s.d[:len(s.x[i])]
		s.drops[i+1].backward(dh)
		p := s.of(i)
		s.layers[i].backward(dx, p[0].G, p[1].G, p[2].G, p[3].G, dh, s.h[i], s.x[i], p[0].W, p[1].W)
	}
	dx := s.d[:len(s.x[0])]
	s.drops[0].backward(dx)
	embedGrad(s.table.G, dx, s.turned, s.embed)
	return nil // tokens have no gradient
}
