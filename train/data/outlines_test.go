package data

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/gobolditalic"
	"golang.org/x/image/font/gofont/goitalic"
	"golang.org/x/image/font/gofont/gomono"
	"golang.org/x/image/font/gofont/gomonobolditalic"
	"golang.org/x/image/font/gofont/goregular"
	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
)

var writeOutlines = flag.Bool("write", false, "write outlines.txt")

// The outlines are those of the Go fonts.
func TestOutlines(t *testing.T) {
	var b strings.Builder
	for _, ttf := range [faces][]byte{goregular.TTF, gobold.TTF, goitalic.TTF, gobolditalic.TTF, gomono.TTF, gomonobolditalic.TTF} {
		font, err := sfnt.Parse(ttf)
		if err != nil {
			t.Fatal(err)
		}
		for digit := range 10 {
			id, err := font.GlyphIndex(nil, rune('0'+digit))
			if err != nil {
				t.Fatal(err)
			}
			var buf sfnt.Buffer
			segments, err := font.LoadGlyph(&buf, id, fixed.I(int(font.UnitsPerEm())), nil)
			if err != nil {
				t.Fatal(err)
			}
			for i, s := range segments {
				if i > 0 {
					b.WriteByte(' ')
				}
				switch s.Op {
				case sfnt.SegmentOpMoveTo:
					fmt.Fprintf(&b, "M %d %d", int(s.Args[0].X), int(s.Args[0].Y))
				case sfnt.SegmentOpLineTo:
					fmt.Fprintf(&b, "L %d %d", int(s.Args[0].X), int(s.Args[0].Y))
				case sfnt.SegmentOpQuadTo:
					fmt.Fprintf(&b, "Q %d %d %d %d", int(s.Args[0].X), int(s.Args[0].Y), int(s.Args[1].X), int(s.Args[1].Y))
				default:
					t.Fatal("a Go font with cubic curves")
				}
			}
			b.WriteByte('\n')
		}
	}
	if *writeOutlines {
		if err := os.WriteFile("outlines.txt", []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
	} else if b.String() != outlines {
		t.Error("outlines.txt is not of the fonts: go test ./train/data -run TestOutlines -write")
	}
}
