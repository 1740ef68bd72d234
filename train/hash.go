package train

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"star/internal/dtype"
)

// LayoutHash tells models apart that say of themselves names and shapes of their tensors alone: 16 hexadecimal
// digits. Types are left out, and complex buffers, so that a model has the same hash as where buffers were known
// as float32, and complex ones not at all. nil and an empty layout differ.
func LayoutHash(layout, buffers []TensorSpec) string {
	type tensor struct {
		Name  string `json:"name"`
		Shape []int  `json:"shape"`
	}
	lists := make([]any, 0, 2)
	for _, specs := range [][]TensorSpec{layout, buffers} {
		var list []tensor
		if specs != nil {
			list = []tensor{}
		}
		for _, t := range specs {
			if !dtype.IsComplex(t.DType) {
				list = append(list, tensor{t.Name, t.Shape})
			}
		}
		lists = append(lists, list)
	}
	text, _ := json.Marshal(lists) // strings and numbers
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}
