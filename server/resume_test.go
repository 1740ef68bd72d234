package server

import (
	"testing"

	"star/train"
	"star/train/checkpoint"
)

// A checkpoint of a program with names that have the prefixes of PyTorch's wrappers is one of the model without them:
// it has the hash of a program that leaves those out.
func TestPlainHash(t *testing.T) {
	specs := func(names ...string) (own []train.TensorSpec, saved []checkpoint.TensorSpec) {
		own, saved = []train.TensorSpec{}, nil
		for i, n := range names {
			own = append(own, train.TensorSpec{Name: n, Shape: []int{2}, Offset: 2 * i})
			saved = append(saved, checkpoint.TensorSpec{Name: n, Shape: []int{2}, Offset: 2 * i})
		}
		return own, saved
	}
	plain, _ := specs("a", "b")
	mean, _ := specs("mean")
	for _, prefix := range []string{"_orig_mod.", "module.", "module._orig_mod.", ""} {
		was, saved := specs(prefix+"a", prefix+"b")
		wasMean, savedMean := specs(prefix + "mean")
		for name, c := range map[string]struct {
			m    checkpoint.Manifest
			want string
		}{
			"buffers":     {checkpoint.Manifest{Layout: saved, BufferLayout: savedMean, ModelHash: train.LayoutHash(was, wasMean)}, train.LayoutHash(plain, mean)},
			"empty":       {checkpoint.Manifest{Layout: saved, ModelHash: train.LayoutHash(was, []train.TensorSpec{})}, train.LayoutHash(plain, []train.TensorSpec{})},
			"none":        {checkpoint.Manifest{Layout: saved, ModelHash: train.LayoutHash(was, nil)}, train.LayoutHash(plain, nil)},
			"another one": {checkpoint.Manifest{Layout: saved, ModelHash: "of a built-in model"}, ""},
		} {
			if got := plainHash(&c.m); got != c.want {
				t.Errorf("%s with %q: %q, want %q", name, prefix, got, c.want)
			}
			if c.m.Layout[0].Name != prefix+"a" {
				t.Errorf("the manifest has become %+v", c.m.Layout)
			}
		}
	}
}
