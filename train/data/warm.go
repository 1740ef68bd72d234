package data

import "star/train"

// Warm has a data set do now what it would do when it is first asked for samples, as far as that is the same for all of them. Whoever is about to be
// waited for should have done it.
func Warm(ds train.Data) {
	if w, ok := ds.(interface{ warm() }); ok {
		w.warm()
	}
}

// warm measures all glyphs: some 0.1 s.
func (d *digits) warm() {
	for face := range faces {
		for digit := range 10 {
			glyph(face, digit)
		}
	}
}
