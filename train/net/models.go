package net

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"star/train"
)

// features refuses tokens.
func features(in train.Input) error {
	if in.Tokens {
		return errors.New("it takes features and the data set has tokens; take lstm or transformer, or another data set")
	}
	return nil
}

// pictures wants images of at least the given side.
func pictures(side int) func(train.Input) error {
	return func(in train.Input) error {
		if err := features(in); err != nil {
			return err
		}
		if len(in.Shape) != 3 {
			return fmt.Errorf("it takes images (channels, height, width) and the data set has shape %v; take softmax or mlp, or another data set", in.Shape)
		}
		if in.Shape[1] < side || in.Shape[2] < side {
			return fmt.Errorf("it takes images of at least %dx%d and the data set has %dx%d", side, side, in.Shape[1], in.Shape[2])
		}
		return nil
	}
}

// stack makes a model layer by layer. The first error stays.
type stack struct {
	b      *Builder
	layers []Layer
	shape  []int // of one sample
	err    error
}

func newStack(b *Builder, in []int) *stack { return &stack{b: b, shape: in} }

func (s *stack) push(l Layer, err error) {
	if s.err == nil {
		s.err = err
	}
	if s.err == nil && l != nil {
		s.layers, s.shape = append(s.layers, l), l.Out()
	}
}

func (s *stack) conv(name string, out int, w Window, act Activation) {
	if s.err == nil {
		s.push(Conv(s.b, name, s.shape, out, w, act))
	}
}

func (s *stack) heConv(name string, out int, w Window, act Activation) {
	if s.err == nil {
		s.push(HeConv(s.b, name, s.shape, out, w, act))
	}
}

// convNorm is a convolution without bias, batch normalisation and activation, as one node.
func (s *stack) convNorm(conv, norm string, out int, w Window, act Activation) {
	if s.err != nil {
		return
	}
	c, err := PlainConv(s.b, conv, s.shape, out, w)
	if err != nil {
		s.err = err
		return
	}
	s.push(ConvNorm(s.b, c, norm, act), nil)
}

// depthwiseNorm is convNorm for each channel alone.
func (s *stack) depthwiseNorm(conv, norm string, w Window, act Activation) {
	if s.err != nil {
		return
	}
	c, err := DepthwiseConv(s.b, conv, s.shape, w)
	if err != nil {
		s.err = err
		return
	}
	s.push(ConvNorm(s.b, c, norm, act), nil)
}

func (s *stack) pool(name string, w Window) {
	if s.err == nil {
		s.push(MaxPool(s.b, name, s.shape, w))
	}
}

func (s *stack) mean(name string) {
	if s.err == nil {
		s.push(GlobalAvgPool(s.b, name, s.shape))
	}
}

func (s *stack) linear(name string, out int, act Activation) {
	if s.err == nil {
		s.push(Linear(s.b, name, s.shape, out, act), nil)
	}
}

func (s *stack) dropout(name string, p float64) {
	if s.err == nil {
		s.push(Dropout(s.b, name, s.shape, p), nil)
	}
}

// chain is the whole stack as one layer.
func (s *stack) chain() (Layer, error) {
	if s.err != nil {
		return nil, s.err
	}
	return Chain(s.layers...), nil
}

// scaled is n·width channels, at least one.
func scaled(n int, width float64) int { return max(1, int(math.Round(float64(n)*width))) }

var widthSetting = setting{"width", 1.0, "factor of all channels", 0.01, 16}

func init() {
	register(definition{
		name:  "softmax",
		about: "softmax regression: one linear layer",
		fits:  features,
		layers: func(b *Builder, s settings) ([]Layer, error) {
			return []Layer{Linear(b, "linear", b.Input, b.Vocab, Identity)}, nil
		},
	})
	register(definition{
		name:     "mlp",
		about:    "perceptron with ReLU",
		settings: []setting{{"hidden", []int{256, 128}, "widths of the hidden layers", 1, 1 << 16}},
		fits:     features,
		layers: func(b *Builder, s settings) ([]Layer, error) {
			t := newStack(b, b.Input)
			for i, n := range s.ints("hidden") {
				t.linear(fmt.Sprintf("fc%d", i+1), n, ReLU)
			}
			t.linear(fmt.Sprintf("fc%d", len(s.ints("hidden"))+1), b.Vocab, Identity)
			return t.layers, t.err
		},
	})
	register(definition{
		name:     "lenet",
		about:    "LeNet-5 with ReLU and max pooling (LeCun et al., Proc. IEEE 86(11), 1998)",
		settings: []setting{widthSetting},
		fits:     pictures(12),
		layers:   lenet,
	})
	register(definition{
		name:  "alexnet",
		about: "AlexNet in its CIFAR form, 3x3 windows (Krizhevsky et al., NIPS 2012)",
		settings: []setting{
			widthSetting,
			{"hidden", []int{4096, 4096}, "widths of the fully connected layers", 1, 1 << 16},
			{"dropout", 0.0, "probability before each fully connected layer", 0, 0.95},
		},
		fits:   pictures(16),
		layers: alexnet,
	})
	for _, depth := range []int{11, 13, 16} {
		register(definition{
			name:  fmt.Sprintf("vgg%d", depth),
			about: fmt.Sprintf("VGG-%d in its CIFAR form, one linear layer after the pooling (Simonyan and Zisserman, ICLR 2015)", depth),
			settings: []setting{
				widthSetting,
				{"bn", true, "batch normalisation after each convolution", 0, 0},
			},
			fits:   pictures(32),
			layers: func(b *Builder, s settings) ([]Layer, error) { return vgg(b, s, depth) },
		})
	}
	for _, depth := range []int{20, 32, 56} {
		register(definition{
			name:  fmt.Sprintf("resnet%d", depth),
			about: fmt.Sprintf("ResNet-%d for CIFAR (He et al., CVPR 2016, section 4.2)", depth),
			settings: []setting{
				widthSetting,
				{"projection", false, "1x1 convolutions as shortcuts between stages (option B) instead of zero channels (option A)", 0, 0},
			},
			fits:   pictures(8),
			layers: func(b *Builder, s settings) ([]Layer, error) { return resnet(b, s, depth) },
		})
	}
	register(definition{
		name:     "mobilenetv2",
		about:    "MobileNetV2 in its CIFAR form (Sandler et al., CVPR 2018)",
		settings: []setting{widthSetting},
		fits:     pictures(8),
		layers:   mobilenet,
	})
}

// lenet pads small images such as MNIST's 28x28 by 2, as the original's 32x32 are.
func lenet(b *Builder, s settings) ([]Layer, error) {
	t, k := newStack(b, b.Input), s.float("width")
	pad := 0
	if b.Input[1] < 32 || b.Input[2] < 32 {
		pad = 2
	}
	t.conv("conv1", scaled(6, k), Window{Size: 5, Pad: pad}, ReLU)
	t.pool("pool1", Window{Size: 2})
	t.conv("conv2", scaled(16, k), Window{Size: 5}, ReLU)
	t.pool("pool2", Window{Size: 2})
	t.linear("fc1", scaled(120, k), ReLU)
	t.linear("fc2", scaled(84, k), ReLU)
	t.linear("fc3", b.Vocab, Identity)
	return t.layers, t.err
}

func alexnet(b *Builder, s settings) ([]Layer, error) {
	t, k := newStack(b, b.Input), s.float("width")
	t.conv("conv1", scaled(64, k), Window{Size: 3, Stride: 2, Pad: 1}, ReLU)
	t.pool("pool1", Window{Size: 2})
	t.conv("conv2", scaled(192, k), Window{Size: 3, Pad: 1}, ReLU)
	t.pool("pool2", Window{Size: 2})
	t.conv("conv3", scaled(384, k), Window{Size: 3, Pad: 1}, ReLU)
	t.conv("conv4", scaled(256, k), Window{Size: 3, Pad: 1}, ReLU)
	t.conv("conv5", scaled(256, k), Window{Size: 3, Pad: 1}, ReLU)
	t.pool("pool5", Window{Size: 2})
	for i, n := range s.ints("hidden") {
		t.dropout(fmt.Sprintf("drop%d", i+1), s.float("dropout"))
		t.linear(fmt.Sprintf("fc%d", i+1), n, ReLU)
	}
	t.linear(fmt.Sprintf("fc%d", len(s.ints("hidden"))+1), b.Vocab, Identity)
	return t.layers, t.err
}

// vggStages are the convolutions of each of the five stages.
var vggStages = map[int][5]int{11: {1, 1, 2, 2, 2}, 13: {2, 2, 2, 2, 2}, 16: {2, 2, 3, 3, 3}}

func vgg(b *Builder, s settings, depth int) ([]Layer, error) {
	t := newStack(b, b.Input)
	channels := [5]int{64, 128, 256, 512, 512}
	for i, n := range vggStages[depth] {
		for j := range n {
			name := fmt.Sprintf("conv%d_%d", i+1, j+1)
			out, w := scaled(channels[i], s.float("width")), Window{Size: 3, Pad: 1}
			if s.bool("bn") {
				t.convNorm(name, fmt.Sprintf("bn%d_%d", i+1, j+1), out, w, ReLU)
			} else {
				t.heConv(name, out, w, ReLU)
			}
		}
		t.pool(fmt.Sprintf("pool%d", i+1), Window{Size: 2})
	}
	t.linear("fc", b.Vocab, Identity)
	return t.layers, t.err
}

// resnet is depth = 6n+2: a convolution, three stages of n blocks of two
// convolutions with 16, 32 and 64 channels, and a linear layer.
func resnet(b *Builder, s settings, depth int) ([]Layer, error) {
	t, k := newStack(b, b.Input), s.float("width")
	t.convNorm("conv1", "bn1", scaled(16, k), Window{Size: 3, Pad: 1}, ReLU)
	for stage := range 3 {
		for block := range (depth - 2) / 6 {
			stride := 1
			if stage > 0 && block == 0 {
				stride = 2
			}
			t.block(fmt.Sprintf("layer%d.%d", stage+1, block), scaled(16<<stage, k), stride, s.bool("projection"))
		}
	}
	t.mean("mean")
	t.linear("fc", b.Vocab, Identity)
	return t.layers, t.err
}

// block is the basic block of a residual network.
func (s *stack) block(name string, out, stride int, projection bool) {
	if s.err != nil {
		return
	}
	body := newStack(s.b, s.shape)
	body.convNorm(name+".conv1", name+".bn1", out, Window{Size: 3, Stride: stride, Pad: 1}, ReLU)
	body.convNorm(name+".conv2", name+".bn2", out, Window{Size: 3, Pad: 1}, Identity)
	main, err := body.chain()
	if err != nil {
		s.err = err
		return
	}
	var shortcut Layer
	if stride != 1 || out != s.shape[0] {
		side := newStack(s.b, s.shape)
		if projection {
			side.convNorm(name+".shortcut.conv", name+".shortcut.bn", out, Window{Size: 1, Stride: stride}, Identity)
		} else {
			side.push(Subsample(s.b, name+".shortcut", s.shape, out, stride))
		}
		if shortcut, err = side.chain(); err != nil {
			s.err = err
			return
		}
	}
	s.push(Residual(s.b, s.shape, main, shortcut, ReLU), nil)
}

// mobileStages are rows of table 2 of Sandler et al. with the strides that suit
// 32x32 images: expansion, channels, blocks, stride.
var mobileStages = [][4]int{
	{1, 16, 1, 1}, {6, 24, 2, 1}, {6, 32, 3, 2}, {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1},
}

func mobilenet(b *Builder, s settings) ([]Layer, error) {
	t, k := newStack(b, b.Input), s.float("width")
	t.convNorm("conv1", "bn1", scaled(32, k), Window{Size: 3, Pad: 1}, ReLU6)
	for i, row := range mobileStages {
		for j := range row[2] {
			stride := 1
			if j == 0 {
				stride = row[3]
			}
			t.inverted(fmt.Sprintf("block%d.%d", i+1, j), row[0], scaled(row[1], k), stride)
		}
	}
	t.convNorm("conv2", "bn2", scaled(1280, k), Window{Size: 1}, ReLU6)
	t.mean("mean")
	t.linear("fc", b.Vocab, Identity)
	return t.layers, t.err
}

// inverted is an inverted residual: widen, convolve each channel, narrow.
func (s *stack) inverted(name string, expand, out, stride int) {
	if s.err != nil {
		return
	}
	in := slices.Clone(s.shape)
	body := newStack(s.b, in)
	if expand > 1 {
		body.convNorm(name+".expand", name+".bn1", expand*in[0], Window{Size: 1}, ReLU6)
	}
	body.depthwiseNorm(name+".depthwise", name+".bn2", Window{Size: 3, Stride: stride, Pad: 1}, ReLU6)
	body.convNorm(name+".project", name+".bn3", out, Window{Size: 1}, Identity)
	main, err := body.chain()
	if err != nil {
		s.err = err
		return
	}
	if stride != 1 || out != in[0] {
		s.push(main, nil)
		return
	}
	s.push(Residual(s.b, in, main, nil, Identity), nil)
}
