//go:build !amd64 || noasm

package kernel

func isaName() string { return "go" }

func gemmNative(transA, transB bool, m, n, k int, alpha float32, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	gemmGo(transA, transB, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
}

func (s Conv) forward(y, x, w, bias []float32) { s.colForward(y, x, w, bias) }
func (s Conv) gradInput(dx, dy, w []float32)   { s.colGradInput(dx, dy, w) }
func (s Conv) gradWeight(dw, dy, x []float32)  { s.colGradWeight(dw, dy, x) }

func vAdd(dst, x []float32)                     { addGo(dst, x) }
func vMul(dst, x, y []float32)                  { mulGo(dst, x, y) }
func vMulAdd(dst, x, y []float32)               { mulAddGo(dst, x, y) }
func vAxpy(alpha float32, x, dst []float32)     { axpyGo(alpha, x, dst) }
func vScale(alpha float32, x []float32)         { scaleGo(alpha, x) }
func vAddScalar(dst, x []float32, s float32)    { addScalarGo(dst, x, s) }
func vDot(x, y []float32) float64               { return dotGo(x, y) }
func vSumSq(x []float32) float64                { return dotGo(x, x) }
func vSum(x []float32) float64                  { return sumGo(x) }
func vMoments(x []float32) (sum, sq float64)    { return momentsGo(x) }
func vSumDot(x, y []float32) (sum, dot float64) { return sumDotGo(x, y) }
func vFinite(x []float32) bool                  { return finiteGo(x) }
func vReLU(dst, x []float32)                    { reluGo(dst, x) }
func vReLUGrad(dx, dy, y []float32)             { reluGradGo(dx, dy, y) }
func vExp(dst, x []float32)                     { expGo(dst, x) }
func vTanh(dst, x []float32)                    { tanhGo(dst, x) }
func vSigmoid(dst, x []float32)                 { sigmoidGo(dst, x) }
func vGELU(dst, x []float32)                    { geluGo(dst, x) }
func vGELUGrad(dx, dy, x []float32)             { geluGradGo(dx, dy, x) }
func vNormalise(dst, x []float32, mean, scale, shift float32) {
	normaliseGo(dst, x, mean, scale, shift)
}
func vNormGrad(dx, dy, x []float32, a, mean, b, c float32) { normGradGo(dx, dy, x, a, mean, b, c) }
func vSGD(w, g []float32, lr, decay float32)               { sgdGo(w, g, lr, decay) }
func vMomentum(w, g, v []float32, lr, mu, rest, decay float32) {
	momentumGo(w, g, v, lr, mu, rest, decay)
}
func vNesterov(w, g, v []float32, lr, mu, rest, decay float32) {
	nesterovGo(w, g, v, lr, mu, rest, decay)
}
func vAccelerate(sum, g, w, v []float32, mu, gain, decay float32) {
	accelerateGo(sum, g, w, v, mu, gain, decay)
}

func vForesee(sum, g, v []float32, mu, gain float32) {
	foreseeGo(sum, g, v, mu, gain)
}

func vFade(v, g []float32, mu float32) {
	fadeGo(v, g, mu)
}
func vAdam(w, g, m, v []float32, c *adamConsts)                    { adamGo(w, g, m, v, c) }
func vMax2x2(y []float32, arg []int32, r0, r1 []float32, base int) { max2x2Go(y, arg, r0, r1, base) }
