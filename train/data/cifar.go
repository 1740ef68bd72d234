package data

import (
	"fmt"
	"os"
	"path/filepath"
)

// A record of the binary versions of CIFAR is one label byte (CIFAR-100: coarse,
// then fine) and 3072 bytes of one image: all red, all green, all blue, each row
// by row (A. Krizhevsky: Learning Multiple Layers of Features from Tiny Images,
// 2009, and the data set's own page).
const cifarImage = 3 * 32 * 32

// cifar is one of the two forms.
type cifar struct {
	folder  string // where the archive unpacks to
	train   []string
	test    string
	labels  int // label bytes of a record
	use     int // which of them
	classes int
}

func openCIFAR10(sp *spec) (trainPart, testPart Dataset, err error) {
	return cifar{
		folder: "cifar-10-batches-bin",
		train:  []string{"data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"},
		test:   "test_batch.bin",
		labels: 1, use: 0, classes: 10,
	}.open(sp)
}

func openCIFAR100(sp *spec) (trainPart, testPart Dataset, err error) {
	c := cifar{folder: "cifar-100-binary", train: []string{"train.bin"}, test: "test.bin", labels: 2, use: 1, classes: 100}
	if sp.choice("labels", "fine", "coarse") == "coarse" {
		c.use, c.classes = 0, 20
	}
	return c.open(sp)
}

func (c cifar) open(sp *spec) (trainPart, testPart Dataset, err error) {
	if err := sp.need(1, 1); err != nil {
		return nil, nil, err
	}
	dir := sp.paths[0]
	if inner := filepath.Join(dir, c.folder); isDir(inner) {
		dir = inner
	}
	var images, testImages []byte
	var labels, testLabels []int32
	for _, name := range c.train {
		if images, labels, err = c.read(filepath.Join(dir, name), sp.maxBytes, images, labels); err != nil {
			return nil, nil, err
		}
	}
	if testImages, testLabels, err = c.read(filepath.Join(dir, c.test), sp.maxBytes, nil, nil); err != nil {
		return nil, nil, err
	}
	a, b := pairPixels(sp, []int{3, 32, 32}, images, labels, testImages, testLabels)
	// The number of classes is known, even where a shortened file lacks some.
	a.(*pixels).input.Classes, b.(*pixels).input.Classes = c.classes, c.classes
	return a, b, nil
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func (c cifar) read(path string, maxBytes int64, images []byte, labels []int32) ([]byte, []int32, error) {
	s, err := openSource(path, "a file of the binary version of CIFAR", maxBytes)
	if err != nil {
		return nil, nil, err
	}
	defer s.Close()
	return c.parse(s, images, labels)
}

// parse appends the records of one file.
func (c cifar) parse(s *source, images []byte, labels []int32) ([]byte, []int32, error) {
	b, err := s.rest("CIFAR records")
	if err != nil {
		return nil, nil, err
	}
	record := c.labels + cifarImage
	if len(b) == 0 || len(b)%record != 0 {
		whole := len(b) / record * record
		return nil, nil, corrupt(s.path, int64(whole), fmt.Sprintf("records of %d bytes, at least one", record), "%d bytes after %d records", len(b)-whole, len(b)/record)
	}
	for at := 0; at < len(b); at += record {
		label := b[at+c.use]
		if int(label) >= c.classes {
			return nil, nil, corrupt(s.path, int64(at+c.use), fmt.Sprintf("a label from 0 to %d", c.classes-1), "%d", label)
		}
		labels = append(labels, int32(label))
		images = append(images, b[at+c.labels:at+record]...)
	}
	return images, labels, nil
}
