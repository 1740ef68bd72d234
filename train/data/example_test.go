package data_test

import (
	"fmt"
	"slices"

	"star/train/data"
)

// Three workers with different shares take turns. No coordinator assigns the remaining samples; after one epoch each
// has been used once.
func ExampleStream() {
	stream := data.Stream{Seed: 1, N: 12}
	position := int64(0)
	var used []int
	for _, turn := range []struct{ worker, share int }{{0, 4}, {1, 2}, {2, 1}, {1, 3}, {0, 2}} {
		samples := stream.Indices(nil, position, turn.share)
		fmt.Printf("worker %d takes positions %2d to %2d: samples %v\n", turn.worker, position, position+int64(turn.share)-1, samples)
		position += int64(turn.share)
		used = append(used, samples...)
	}
	slices.Sort(used)
	fmt.Println("used:", used)
	// Output:
	// worker 0 takes positions  0 to  3: samples [0 2 10 1]
	// worker 1 takes positions  4 to  5: samples [11 7]
	// worker 2 takes positions  6 to  6: samples [4]
	// worker 1 takes positions  7 to  9: samples [3 8 6]
	// worker 0 takes positions 10 to 11: samples [5 9]
	// used: [0 1 2 3 4 5 6 7 8 9 10 11]
}

func ExampleLoader() {
	trainPart, _, err := data.Open("digits:n=100", data.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	loader := data.NewLoader(trainPart, data.Stream{Seed: 1})
	defer loader.Close()
	for position := int64(0); position < 100; position += 50 {
		batch, err := loader.Next(position, 50)
		if err != nil {
			fmt.Println(err)
			return
		}
		loader.Hint(position+50, 50) // drawn while the model computes on batch
		fmt.Println(batch.Samples, "samples of", trainPart.Input().Shape, "in", len(batch.X), "features")
	}
	// Output:
	// 50 samples of [1 28 28] in 39200 features
	// 50 samples of [1 28 28] in 39200 features
}

// A specification that is wrong says what is right.
func ExampleOpen() {
	_, _, err := data.Open("cifar100:/data,labels=rough", data.Options{})
	fmt.Println(err)
	// Output:
	// bad data set specification "cifar100:/data,labels=rough": labels=rough is not one of fine, coarse; write cifar100:DIR[,labels=fine|coarse]
}
