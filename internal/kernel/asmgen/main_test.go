package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// The files in the package are what this program writes.
func TestFilesAreFresh(t *testing.T) {
	for name, want := range files() {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what asmgen writes: run go run ./asmgen in internal/kernel", name)
		}
	}
}
