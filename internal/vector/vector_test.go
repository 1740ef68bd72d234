package vector

import "testing"

// Every element can be had, is zero, and belongs to one vector only.
func TestMake(t *testing.T) {
	var kept [][]float32
	for _, n := range []int{0, 1, 1000, 1<<19 - 1, 1 << 19, 1<<19 + 1, 3<<19 - 7, 5_000_000} {
		for range 2 {
			v := Make[float32](n)
			if len(v) != n || cap(v) != n {
				t.Fatalf("a vector of %d elements has %d, and room for %d", n, len(v), cap(v))
			}
			for i, x := range v {
				if x != 0 {
					t.Fatalf("element %d of %d is %v", i, n, x)
				}
				v[i] = float32(len(kept) + 1)
			}
			kept = append(kept, v)
		}
	}
	for k, v := range kept {
		for i, x := range v {
			if x != float32(k+1) {
				t.Fatalf("vector %d: element %d is %v", k, i, x)
			}
		}
	}
	if v := Make[struct{}](1 << 22); len(v) != 1<<22 {
		t.Error("elements without a size")
	}
	if v := Make[[3]byte](1 << 21); len(v) != 1<<21 || v[1<<21-1] != [3]byte{} {
		t.Error("elements that do not fill a page")
	}
}
