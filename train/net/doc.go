// Package net holds the models: softmax regression, perceptrons, LeNet, AlexNet,
// VGG, ResNet, MobileNetV2 and the sequence models, built from settings and
// trained on one flat vector of parameters.
//
// A model is a chain of Layers that ends in a softmax cross-entropy. The chain is
// a gorgonia expression graph: one node for each layer (a whole residual block
// is one layer), one for each parameter tensor, and the derivative graph that
// gorgonia makes of them; a tape machine runs it. The arithmetic is our own,
// over slices (package kernel), because gorgonia v0.9.18 has operations that are
// silently wrong (SoftMax of rows with a wide range, Sum over two axes,
// InverseSqrt, Dropout with p = 0), one that kills the process (max pooling of
// NaN), and many that allocate. Of gorgonia's own operations a graph of ours
// holds none; allow_test.go checks that, and keeps the reasons.
//
// Values of parameter nodes are views of the flat parameter vector, gradients
// views of the flat gradient. Nothing is copied between gorgonia and the runtime,
// and no layer allocates after its first step.
//
// What will bite:
//   - Shapes are static: each batch size is a graph of its own with its own
//     activations. A Model keeps the last few sizes.
//   - Gorgonia builds graphs with a global counter that is not guarded. All
//     building happens under one lock of this package.
//   - Gradients are added up in the flat gradient, so that a tensor may be used
//     twice; it is cleared before every run.
//   - The running statistics of batch normalisation are Buffers, not parameters.
//     Grad changes them; the runtime averages them over workers at checkpoints
//     and evaluations. Eval normalises with them.
//   - The default initialisation is PyTorch's for the same layer, drawn from our
//     own generator: the same seed gives the same bits on every machine.
package net
