package data

import "testing"

func TestWarm(t *testing.T) {
	d, _ := open(t, "digits:n=20,test=10")
	Warm(d)
	for face := range faces {
		for digit := range 10 {
			if glyphs[face][digit].d == (distances{}) {
				t.Errorf("the glyph of %d in face %d is not measured", digit, face)
			}
		}
	}
}
