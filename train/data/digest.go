package data

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"strconv"

	"star/train"
)

// digested is how many samples Digest looks at.
const digested = 256

// Digest tells data sets of one name and size apart: it is made of the labels and tokens of 256 samples, evenly
// spread, and of how large their features are, to three digits, so that processors that differ in the last bits of
// generated or normalised features make the same one.
func Digest(d train.Data) (string, error) {
	n := min(d.Len(), digested)
	sum := sha256.New()
	var b train.Batch
	scale := 0.0
	put := func(vs []int32) {
		for _, v := range vs {
			sum.Write(binary.LittleEndian.AppendUint32(nil, uint32(v)))
		}
	}
	for i := range n {
		if err := d.Fill(&b, []int{int(int64(i) * int64(d.Len()) / int64(n))}); err != nil {
			return "", err
		}
		put(b.Y)
		put(b.Tokens)
		for _, x := range b.X {
			scale += math.Abs(float64(x))
		}
	}
	sum.Write(strconv.AppendFloat(nil, scale, 'e', 2, 64))
	return hex.EncodeToString(sum.Sum(nil)[:8]), nil
}
