package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// What is generated is what the table says.
func TestFilesAreFresh(t *testing.T) {
	fs, err := files("..")
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range fs {
		got, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s is not what messages.go says: run go generate ./transport/wire", name)
		}
	}
}
