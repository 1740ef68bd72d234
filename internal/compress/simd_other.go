//go:build !amd64 || noasm

package compress

func assembly() bool { return false }

func addF32(dst []float32, scale float32, b []byte)  { addF32Go(dst, scale, b) }
func putFP16(b []byte, x []float32)                  { putFP16Go(b, x) }
func getFP16(dst []float32, b []byte)                { getFP16Go(dst, b) }
func addFP16(dst []float32, scale float32, b []byte) { addFP16Go(dst, scale, b) }
func putBF16(b []byte, x []float32)                  { putBF16Go(b, x) }
func getBF16(dst []float32, b []byte)                { getBF16Go(dst, b) }
func addBF16(dst []float32, scale float32, b []byte) { addBF16Go(dst, scale, b) }
func absMax(x []float32) uint32                      { return absMaxGo(x) }
func quantise(q []byte, x []float32, inv float32)    { quantiseGo(q, x, inv) }
func quantiseRandom(q []byte, x []float32, inv float32, key uint32) {
	quantiseRandomGo(q, x, inv, key, 0)
}
func getInt8(dst []float32, q []byte, s float32) { getInt8Go(dst, q, s) }
func addInt8(dst []float32, scale float32, q []byte, s float32) {
	addInt8Go(dst, scale, q, s)
}
func above(found []uint32, x []float32, limit, first uint32) int {
	return aboveGo(found, x, limit, first)
}
