package runlog

import (
	"bufio"
	"bytes"
	"io"
)

// Thin copies the lines of a part of a log, but for records, firings and noise: in the place of the first of them
// is a Gap.
func Thin(w io.Writer, r io.Reader) error {
	var g Gap
	var from Seconds
	var kept bytes.Buffer
	before := 0 // of kept, where the gap begins
	err := eachLine(r, func(line []byte) error {
		x, err := head(line)
		if err == nil {
			switch x.kind {
			case "record":
				g.Records++
			case "fire":
				g.Fires++
				if f, ok := x.entry.(Fire); ok {
					g.Version, g.Samples = f.Version, f.Samples
				}
			case "noise":
				g.Noises++
			default:
				kept.Write(append(line, '\n'))
				return nil
			}
		}
		if err != nil {
			return err
		}
		if g.Records+g.Fires+g.Noises == 1 {
			before, from = kept.Len(), x.t
		}
		if x.t > g.Until {
			g.Until = x.t
		}
		return nil
	})
	if err != nil {
		return err
	}
	text := kept.Bytes()
	if _, err := w.Write(text[:before]); err != nil {
		return err
	}
	if g.Records+g.Fires+g.Noises > 0 {
		line, err := appendLine(nil, from.Duration(), g)
		if err != nil {
			return err
		}
		if _, err := w.Write(line); err != nil {
			return err
		}
	}
	_, err = w.Write(text[before:])
	return err
}

// eachLine passes on each line that is not empty, without its end.
func eachLine(r io.Reader, each func([]byte) error) error {
	sc := bufio.NewScanner(r)
	sc.Buffer(make([]byte, 0, 64<<10), MaxLine)
	for sc.Scan() {
		if b := bytes.TrimSpace(sc.Bytes()); len(b) > 0 {
			if err := each(b); err != nil {
				return err
			}
		}
	}
	return sc.Err()
}
