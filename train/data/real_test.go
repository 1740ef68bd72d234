package data

import (
	"math"
	"os"
	"path/filepath"
	"testing"
)

// realData is a folder of real files: $STAR_DATA, or shared/data beside a folder above this one. The test is skipped
// without such a folder.
func realData(t *testing.T, name string) string {
	t.Helper()
	dirs := []string{os.Getenv("STAR_DATA")}
	if dirs[0] == "" {
		here, err := os.Getwd()
		if err != nil {
			t.Fatal(err)
		}
		for dir := here; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
			dirs = append(dirs, filepath.Join(filepath.Dir(dir), "shared", "data"))
		}
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); dir != "" && err == nil {
			return path
		}
	}
	t.Skipf("no real data: neither $STAR_DATA/%s nor shared/data/%s in a folder above", name, name)
	return ""
}

func TestRealMNIST(t *testing.T) {
	trainPart, testPart := open(t, "mnist:"+realData(t, "mnist"))
	if trainPart.Len() != 60000 || testPart.Len() != 10000 || trainPart.Input().Classes != 10 {
		t.Errorf("%d and %d samples of %d classes", trainPart.Len(), testPart.Len(), trainPart.Input().Classes)
	}
	// The constants that are common in MNIST scripts.
	s := trainPart.(*pixels).scale
	if math.Abs(s.mean[0]-0.1307) > 5e-5 || math.Abs(s.std[0]-0.3081) > 5e-5 {
		t.Errorf("mean %.5f, deviation %.5f, want 0.1307 and 0.3081", s.mean[0], s.std[0])
	}
	b := whole(t, testPart)
	if want := [5]int32{7, 2, 1, 0, 4}; [5]int32(b.Y[:5]) != want {
		t.Errorf("first labels to test on %v, want %v", b.Y[:5], want)
	}
	checkFill(t, trainPart)
}

func TestRealShakespeare(t *testing.T) {
	path := realData(t, "tinyshakespeare/input.txt")
	trainPart, testPart := open(t, "chars:"+path+",window=128")
	// 1,115,394 characters of 65 kinds; 111,539 to test on.
	if got := trainPart.Input().Classes; got != 66 {
		t.Errorf("%d characters with %s, want 66", got, Unknown)
	}
	if got, want := trainPart.Len(), (1115394-111539-1)/128; got != want {
		t.Errorf("%d windows to train on, want %d", got, want)
	}
	if got, want := testPart.Len(), (111539-1)/128; got != want {
		t.Errorf("%d windows to test on, want %d", got, want)
	}
	checkFill(t, trainPart)

	wordPart, _ := open(t, "words:"+path)
	if got := wordPart.Input().Classes; got != 10001 {
		t.Errorf("%d words, want 10001", got)
	}
	checkFill(t, wordPart)
}
