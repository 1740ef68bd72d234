package price

// What momentum bears, and what is left of that when gradients are stale.
//
// A step with momentum μ moves the parameters by η/(1 − μ) times the mean of the gradients of the last 1/(1 − μ) updates or so. Let ν be the part of itself by which
// the gradient would change in a round of samples along the steepest direction, were there no memory: ν = η·λ/(1 − μ), with λ the largest curvature. SSGD is stable up to
//
//	ν = 2·(1 + μ)/(1 − μ)                                                     (28)
//
// (B. T. Polyak, Some methods of speeding up the convergence of iteration methods, 1964): 2 without momentum, 38 with μ = 0.9. Training goes to where that is: networks settle at
// curvatures near what their optimiser bears (J. Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability, ICLR 2021). Gradients that are d rounds old on average take away from
// the damping what they are late, w(t − d) ≈ w(t) − d·ẇ(t), and with memory there is little of it: nothing is left at
//
//	ν = 1/d                                                                   (29)
//
// whatever μ is. So without momentum staleness costs nothing that SSGD could have had, and with it what momentum brought is lost. docs/theory.md has the limits of plans, what networks make of
// it, and why memory in samples in place of updates is no remedy.

// bearable is the ν·d up to which a plan costs no more: networks are trained on where they are less steep. It is measured (docs/theory.md).
const bearable = 4

// PriorSteepness is ν where it was not measured: a third of (28), and 0 without momentum.
func PriorSteepness(momentum float64) float64 {
	if momentum == 0 {
		return 0
	}
	return steepest(momentum) / 3
}

// steepest is (28).
func steepest(momentum float64) float64 { return 2 * (1 + momentum) / (1 - momentum) }

// Steepness is ν by what package pgns measures in rounds of SSGD (pgns.Course, equation 27), at most (28). With momentum the parameters swing about the bottom of a steep direction, and
// consecutive gradients are alike: their correlation is 1 − ν·(1 − μ)/(1 + μ), that of an autoregressive process of second order, and the answer to a gradient's own noise, in the
// next round, is ν·(1 − μ)·trΣ/B. So the θ̂ of (27) is
//
//	ν·(1 − μ)·(1/(1 + μ) + φ/B)                                               (30)
//
// which without momentum is ν·(1 + φ/B). noise is φ in samples, round the samples of a round.
func Steepness(theta, noise float64, round int, momentum float64) float64 {
	return min(theta/((1-momentum)*(1/(1+momentum)+noise/float64(round))), steepest(momentum))
}

// strain is what a plan costs more because gradients are stale where memory makes steps that they are too old for.
func (p Price) strain(behind float64) float64 { return max(1, p.ν*behind/bearable) }

// VelocityRate is θ where each worker has a velocity of its own. What gradients tell of θ, by their drift or in SSGD (27), is no measure of it there: with memory consecutive gradients are alike (30). So it is what
// five networks need under ASGD of the samples of SSGD (docs/theory.md, Momentum of each worker).
const VelocityRate = 0.3

// seenNoise is the noise scale of a direction that remembers with momentum μ: the sum over gradients weighted by μ⁰, μ¹, …, whose squares are 1/(1 − μ²) of one where its square is 1/(1 − μ)².
func seenNoise(noise, μ float64) float64 { return noise * (1 - μ) / (1 + μ) }
