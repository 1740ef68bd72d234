package net

import (
	"fmt"
	"math"

	"star/internal/kernel"
)

func init() {
	register(definition{
		name:  "transformer",
		about: "language model: decoder of causal attention with normalisation before each part (pre-LN), learned positions",
		settings: []setting{
			{"layers", 2, "blocks", 1, 64},
			{"heads", 4, "attention heads; must divide width", 1, 256},
			{"width", 128, "width of the embedding and of every block", 1, 1 << 14},
			{"ff", 0, "width inside the feed-forward network; 0 means 4 times width", 0, 1 << 16},
			{"dropout", 0.0, "probability of dropping an element of the embedding and of what attention and feed-forward add", 0, 0.95},
			{"tied", false, "use the embedding as the head's weights", 0, 0},
		},
		fits: tokenRows,
		layers: func(b *Builder, s settings) ([]Layer, error) {
			steps, width, heads, ff := b.Input[0], s.int("width"), s.int("heads"), s.int("ff")
			if ff == 0 {
				ff = 4 * width
			}
			if width%heads != 0 {
				return nil, fmt.Errorf("net: model transformer: width=%d cannot be divided among heads=%d", width, heads)
			}
			sigma := 1.0
			if s.bool("tied") {
				// Scores are products of two vectors of the table's scale: with
				// N(0, 1) they would start at ±√width.
				sigma = 1 / math.Sqrt(float64(width))
			}
			first := newPositions(b, width, sigma, s.float("dropout"))
			layers := []Layer{first}
			for i := range s.int("layers") {
				layers = append(layers, newBlock(b, i, width, heads, ff, s.float("dropout")))
			}
			layers = append(layers, newLayerNormLayer(b, "norm", steps, width))
			if s.bool("tied") {
				return append(layers, newTiedHead(b, steps, width, first.table)), nil
			}
			return append(layers, newHead(b, steps, width)), nil
		},
	})
}

// attention is causal multi-head self-attention with its input and output
// projections over rows of (batch, steps):
//
//	q, k, v = x W_qkvᵀ + b_qkv,  split in three, each in heads of width/heads
//	y = concat(softmax(q kᵀ / √d + causal mask) v) W_oᵀ + b_o
//
// The parameters are those of torch.nn.MultiheadAttention.
//
// Reference: A. Vaswani et al.: Attention Is All You Need. NIPS 2017, section 3.2.
type attention struct {
	batch, steps, width, heads int

	qkv  []float32 // (batch, steps, 3·width)
	prob []float32 // (batch, heads, steps, steps); zero above the diagonal
	mix  []float32 // (batch, steps, width): the heads' outputs side by side

	dqkv  []float32 // like qkv
	dprob []float32 // (steps, steps)
	dmix  []float32 // like mix
	sum   []float32 // (3·width)
}

// newAttention makes an attention; one that is not trained cannot run backward.
func newAttention(batch, steps, width, heads int, trained bool) *attention {
	n := batch * steps * width
	a := &attention{
		batch: batch, steps: steps, width: width, heads: heads,
		qkv:  make([]float32, 3*n),
		prob: make([]float32, batch*heads*steps*steps),
		mix:  make([]float32, n),
	}
	if trained {
		a.dqkv, a.dmix = make([]float32, 3*n), make([]float32, n)
		a.dprob = make([]float32, steps*steps)
		a.sum = make([]float32, 3*width)
	}
	return a
}

func (a *attention) scale() float32 {
	return float32(1 / math.Sqrt(float64(a.width/a.heads)))
}

// forward computes y (batch·steps, width) of x, of the same shape.
func (a *attention) forward(y, x, wqkv, bqkv, wo, bo []float32) {
	B, T, W, d := a.batch, a.steps, a.width, a.width/a.heads
	affine(a.qkv, x, wqkv, bqkv, B*T, 3*W, W)
	for b := range B {
		rows := a.qkv[b*T*3*W : (b+1)*T*3*W]
		for h := range a.heads {
			q, k, v := rows[h*d:], rows[W+h*d:], rows[2*W+h*d:]
			p := a.prob[(b*a.heads+h)*T*T:][:T*T]
			kernel.Gemm(false, true, T, T, d, a.scale(), q, 3*W, k, 3*W, 0, p, T)
			for t := range T {
				softmaxPrefix(p[t*T:(t+1)*T], t+1)
			}
			kernel.Gemm(false, false, T, d, T, 1, p, T, v, 3*W, 0, a.mix[b*T*W+h*d:], W)
		}
	}
	affine(y, a.mix, wo, bo, B*T, W, W)
}

// backward takes the gradient dy of the last forward's y, adds to dwqkv, dbqkv,
// dwo and dbo and overwrites dx.
func (a *attention) backward(dx, dwqkv, dbqkv, dwo, dbo, dy, x, wqkv, wo []float32) {
	B, T, W, d := a.batch, a.steps, a.width, a.width/a.heads
	affineGrad(a.dmix, dwo, dbo, dy, a.mix, wo, a.sum, B*T, W, W)
	for b := range B {
		rows, drows := a.qkv[b*T*3*W:(b+1)*T*3*W], a.dqkv[b*T*3*W:(b+1)*T*3*W]
		for h := range a.heads {
			q, k, v := rows[h*d:], rows[W+h*d:], rows[2*W+h*d:]
			dq, dk, dv := drows[h*d:], drows[W+h*d:], drows[2*W+h*d:]
			p, dp := a.prob[(b*a.heads+h)*T*T:][:T*T], a.dprob
			dm := a.dmix[b*T*W+h*d:]
			kernel.Gemm(true, false, T, d, T, 1, p, T, dm, W, 0, dv, 3*W)
			kernel.Gemm(false, true, T, T, d, 1, dm, W, v, 3*W, 0, dp, T)
			for t := range T {
				softmaxPrefixGrad(dp[t*T:(t+1)*T], p[t*T:(t+1)*T], t+1)
			}
			kernel.Gemm(false, false, T, d, T, a.scale(), dp, T, k, 3*W, 0, dq, 3*W)
			kernel.Gemm(true, false, T, d, T, a.scale(), dp, T, q, 3*W, 0, dk, 3*W)
		}
	}
	affineGrad(dx, dwqkv, dbqkv, a.dqkv, x, wqkv, a.sum, B*T, 3*W, W)
}

// softmaxPrefix replaces the first n scores of row by their softmax, and the
// others, which lie in the future, by zero.
func softmaxPrefix(row []float32, n int) {
	p := row[:n]
	top := p[0]
	for _, v := range p[1:] {
		top = max(top, v)
	}
	for i := range p {
		p[i] -= top
	}
	kernel.Exp(p, p)
	var sum float32
	for _, v := range p {
		sum += v
	}
	inv := 1 / sum
	for i := range p {
		p[i] *= inv
	}
	clear(row[n:])
}

// softmaxPrefixGrad turns the gradient d of the probabilities p into that of
// the scores, d_i ← p_i (d_i − Σ_j d_j p_j), in place.
func softmaxPrefixGrad(d, p []float32, n int) {
	p = p[:n]
	q := d[:n]
	var dot float32
	for i, v := range p {
		dot += v * q[i]
	}
	for i, v := range p {
		q[i] = v * (q[i] - dot)
	}
	clear(d[n:])
}

// feedForward is the position-wise network y = GELU(x W_1ᵀ + b_1) W_2ᵀ + b_2.
type feedForward struct {
	rows, width, inner int

	pre, act   []float32 // (rows, inner) before and after GELU
	dpre, dact []float32
	sum        []float32 // (max(inner, width))
}

// newFeedForward makes a network; one that is not trained cannot run backward.
func newFeedForward(rows, width, inner int, trained bool) *feedForward {
	n := rows * inner
	f := &feedForward{
		rows: rows, width: width, inner: inner,
		pre: make([]float32, n), act: make([]float32, n),
	}
	if trained {
		f.dpre, f.dact = make([]float32, n), make([]float32, n)
		f.sum = make([]float32, max(inner, width))
	}
	return f
}

func (f *feedForward) forward(y, x, w1, b1, w2, b2 []float32) {
	affine(f.pre, x, w1, b1, f.rows, f.inner, f.width)
	kernel.GELU(f.act, f.pre)
	affine(y, f.act, w2, b2, f.rows, f.width, f.inner)
}

// backward takes the gradient dy of the last forward's y, adds to dw1, db1, dw2
// and db2 and overwrites dx.
func (f *feedForward) backward(dx, dw1, db1, dw2, db2, dy, x, w1, w2 []float32) {
	affineGrad(f.dact, dw2, db2, dy, f.act, w2, f.sum, f.rows, f.width, f.inner)
	kernel.GELUGrad(f.dpre, f.dact, f.pre)
	affineGrad(dx, dw1, db1, f.dpre, x, w1, f.sum, f.rows, f.inner, f.width)
}

// block is one layer of a decoder with the normalisation before each part:
//
//	z = x + drop(attention(norm₁(x)))
//	y = z + drop(feedForward(norm₂(z)))
//
// It has the parameters of torch.nn.TransformerEncoderLayer(norm_first=True,
// activation="gelu"), in their order, with their names and default initial
// distributions: Xavier uniform for W_qkv, U(−1/√fan_in, 1/√fan_in) for the other
// weights and the feed-forward biases, zero for the biases of attention. Unlike
// there, dropout is not applied inside attention and feed-forward.
//
// Reference: R. Xiong et al.: On Layer Normalization in the Transformer Architecture. ICML 2020.
type block struct {
	steps, width int
	norm1, norm2 *layerNorm
	attn         *attention
	ff           *feedForward
	drop1, drop2 *dropout
	params       []*Param // W_qkv, b_qkv, W_o, b_o, W_1, b_1, W_2, b_2, γ_1, β_1, γ_2, β_2

	x, in1, z, in2, y []float32 // (batch, steps, width)
	dx, dz, branch    []float32
}

func newBlock(b *Builder, i, width, heads, inner int, drop float64) *block {
	steps := b.Input[0]
	rows := b.Batch * steps
	name := fmt.Sprintf("layers.%d.", i)
	xavier := Uniform(math.Sqrt(6 / float64(3*width+width))) // X. Glorot, Y. Bengio, AISTATS 2010; fan_in + fan_out
	l := &block{
		steps: steps, width: width,
		attn:  newAttention(b.Batch, steps, width, heads, b.Train),
		ff:    newFeedForward(rows, width, inner, b.Train),
		drop1: newDropout(b, drop, rows*width, 2*i+1),
		drop2: newDropout(b, drop, rows*width, 2*i+2),
		params: []*Param{
			b.Param(name+"self_attn.in_proj_weight", xavier, 3*width, width),
			b.Param(name+"self_attn.in_proj_bias", Constant(0), 3*width),
			b.Param(name+"self_attn.out_proj.weight", FanIn(width), width, width),
			b.Param(name+"self_attn.out_proj.bias", Constant(0), width),
			b.Param(name+"linear1.weight", FanIn(width), inner, width),
			b.Param(name+"linear1.bias", FanIn(width), inner),
			b.Param(name+"linear2.weight", FanIn(inner), width, inner),
			b.Param(name+"linear2.bias", FanIn(inner), width),
		},
		norm1: newLayerNorm(b, name+"norm1", rows, width),
		norm2: newLayerNorm(b, name+"norm2", rows, width),
	}
	l.params = append(l.params, l.norm1.gamma, l.norm1.beta, l.norm2.gamma, l.norm2.beta)
	n := rows * width
	l.in1, l.z, l.in2, l.y = make([]float32, n), make([]float32, n), make([]float32, n), make([]float32, n)
	if b.Train {
		l.dx, l.dz, l.branch = make([]float32, n), make([]float32, n), make([]float32, n)
	}
	return l
}

func (l *block) Out() []int       { return []int{l.steps, l.width} }
func (l *block) Params() []*Param { return l.params }

func (l *block) Forward(x []float32) []float32 {
	p := l.params
	l.x = x
	l.norm1.forward(l.in1, x)
	l.attn.forward(l.z, l.in1, p[0].W, p[1].W, p[2].W, p[3].W)
	l.drop1.forward(l.z)
	kernel.Add(l.z, x)
	l.norm2.forward(l.in2, l.z)
	l.ff.forward(l.y, l.in2, p[4].W, p[5].W, p[6].W, p[7].W)
	l.drop2.forward(l.y)
	kernel.Add(l.y, l.z)
	return l.y
}

func (l *block) Backward(dy []float32) []float32 {
	p := l.params
	copy(l.branch, dy)
	l.drop2.backward(l.branch)
	l.ff.backward(l.dz, p[4].G, p[5].G, p[6].G, p[7].G, l.branch, l.in2, p[4].W, p[6].W)
	l.norm2.backward(l.dz, l.dz, l.z)
	kernel.Add(l.dz, dy)
	copy(l.branch, l.dz)
	l.drop1.backward(l.branch)
	l.attn.backward(l.dx, p[0].G, p[1].G, p[2].G, p[3].G, l.branch, l.in1, p[0].W, p[2].W)
	l.norm1.backward(l.dx, l.dx, l.x)
	kernel.Add(l.dx, l.dz)
	return l.dx
}
