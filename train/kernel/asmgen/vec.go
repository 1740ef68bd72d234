package main

func vectors() []byte {
	g := new(gen)
	g.head()
	return g.Bytes()
}
