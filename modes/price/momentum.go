package price

// The limits of momentum with stale gradients.
//
// A step with momentum μ moves the parameters by η/(1 − μ) times the mean of the gradients of about the last 1/(1 − μ)
// updates. Let ν be the relative change of the gradient in a round of samples along the steepest direction, without
// memory: ν = η·λ/(1 − μ), with λ the largest curvature. SSGD is stable up to
//
//	ν = 2·(1 + μ)/(1 − μ)                                                     (23)
//
// (B. T. Polyak, Some methods of speeding up the convergence of iteration methods, 1964): 2 without momentum, 38 with
// μ = 0.9. Training approaches that limit: networks settle at curvatures near those at which their optimiser becomes
// unstable (J. Cohen et al., Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability, ICLR 2021).
// Gradients that are d rounds old on average reduce the damping in proportion to d, w(t − d) ≈ w(t) − d·ẇ(t), and with
// memory the damping is small: it is zero at
//
//	ν = 1/d                                                                   (24)
//
// for every μ. So without momentum staleness costs nothing that SSGD could have had, and with it the gain of momentum
// is lost. bench/RESULTS.md has the limits of plans and the behaviour of networks, docs/theory.md the reason why memory
// in samples instead of updates does not help.

// bearable is the ν·d up to which a plan has no extra cost: networks also train in directions that are less steep. It
// was measured (bench/RESULTS.md).
const bearable = 4

// PriorSteepness is ν where it was not measured: a third of (23), and 0 without momentum.
func PriorSteepness(momentum float64) float64 {
	if momentum == 0 {
		return 0
	}
	return steepest(momentum) / 3
}

// steepest is (23).
func steepest(momentum float64) float64 { return 2 * (1 + momentum) / (1 - momentum) }

// Steepness is ν from the measurements of package pgns in rounds of SSGD (pgns.Course, equation 22), at most (23). With
// momentum the parameters oscillate about the bottom of a steep direction, and consecutive gradients are similar: their
// correlation is 1 − ν·(1 − μ)/(1 + μ), that of an autoregressive process of second order, and the response to a
// gradient's own noise, in the next round, is ν·(1 − μ)·trΣ/B. So the θ̂ of (22) is
//
//	ν·(1 − μ)·(1/(1 + μ) + φ/B)                                               (25)
//
// which without momentum is ν·(1 + φ/B). noise is φ in samples, round the samples of a round.
func Steepness(theta, noise float64, round int, momentum float64) float64 {
	return min(theta/((1-momentum)*(1/(1+momentum)+noise/float64(round))), steepest(momentum))
}

// strain is the factor by which a plan costs more because its gradients are too stale for the steps of the momentum.
func (p Price) strain(behind float64) float64 { return max(1, p.ν*behind/bearable) }

// VelocityRate is θ where each worker has its own velocity. Neither the drift of gradients nor (22) measures θ there,
// because with memory consecutive gradients are similar (25). So it is the number of samples that five networks need
// under ASGD, relative to SSGD (docs/theory.md, What velocities cost).
const VelocityRate = 0.3

// seenNoise is the noise scale of a direction with momentum μ: a sum over gradients with weights μ⁰, μ¹, …. The sum of
// their squares is 1/(1 − μ²), and the square of their sum 1/(1 − μ)².
func seenNoise(noise, μ float64) float64 { return noise * (1 - μ) / (1 + μ) }
