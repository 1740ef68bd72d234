package net

import (
	"testing"

	"star/train"
	"star/train/traintest"
)

var (
	flat  = train.Input{Shape: []int{12}, Classes: 5}
	mnist = train.Input{Shape: []int{1, 28, 28}, Classes: 10}
	cifar = train.Input{Shape: []int{3, 32, 32}, Classes: 10}
	small = train.Input{Shape: []int{3, 12, 12}, Classes: 4}
)

// kits are small forms of the models that take features.
var kits = map[string]traintest.Kit{
	"softmax":         {Input: flat},
	"mlp:hidden=16-8": {Input: flat},
	"lenet:width=0.5": {Input: small},
	"alexnet:width=0.1,hidden=64,dropout=0.3": {Input: train.Input{Shape: []int{3, 16, 16}, Classes: 4}, Random: true, Steps: 200, Rate: 0.2},
	"alexnet:width=0.1,hidden=64":             {Input: train.Input{Shape: []int{3, 16, 16}, Classes: 4}, Steps: 200, Rate: 0.2},
	"vgg11:width=0.06,bn=false":               {Input: train.Input{Shape: []int{1, 32, 32}, Classes: 3}},
	"vgg11:width=0.06":                        {Input: train.Input{Shape: []int{1, 32, 32}, Classes: 3}, Coupled: true},
	"vgg13:width=0.03":                        {Input: train.Input{Shape: []int{1, 32, 32}, Classes: 3}, Coupled: true},
	"vgg16:width=0.03":                        {Input: train.Input{Shape: []int{1, 32, 32}, Classes: 3}, Coupled: true},
	"resnet32:width=0.15":                     {Input: small, Coupled: true},
	"resnet56:width=0.15":                     {Input: small, Coupled: true},
	"resnet20:width=0.25":                     {Input: small, Coupled: true},
	"resnet20:width=0.2,projection=true":      {Input: small, Coupled: true},
	"mobilenetv2:width=0.1":                   {Input: small, Coupled: true},
}

func TestConformance(t *testing.T) {
	for name, k := range kits {
		t.Run(name, func(t *testing.T) {
			spec, err := Parse(name)
			if err != nil {
				t.Fatal(err)
			}
			spec.Input, spec.Seed = k.Input, 7
			k.New = func() (train.Model, error) { return Build(spec) }
			traintest.Run(t, k)
		})
	}
}
