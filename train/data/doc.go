// Package data opens data sets, orders their samples and makes batches of them.
//
// A data set is named by a specification:
//
//	FORMAT[:ARGUMENT,ARGUMENT...]
//
// Each argument is a path or a setting KEY=VALUE. A path that contains a comma
// cannot be written (link to it); one that begins like a setting is written ./KEY=….
//
//	digits[:n=12000,test=2000,seed=1]      generated; needs no file
//	shapes[:n=6000,test=1000,seed=1]       generated, of CIFAR's form
//	babble[:n=200000,window=64,stride=WINDOW,test=0.1,seed=1]
//	                                       a generated text
//	mnist:DIR                              the four IDX files of MNIST or Fashion-MNIST
//	idx:DIR | idx:IMAGES,LABELS[,TESTIMAGES,TESTLABELS][,test=0.1,seed=1]
//	cifar10:DIR                            binary version
//	cifar100:DIR[,labels=fine|coarse]      binary version
//	chars:FILE[,window=64,stride=WINDOW,vocab=1024,test=0.1]
//	words:FILE[,window=32,stride=WINDOW,vocab=10000,test=0.1]
//	npy:X.npy,Y.npy[,TESTX.npy,TESTY.npy][,layout=nchw|nhwc,test=0.1,seed=1]
//	npz:FILE[,x=KEY,y=KEY[,xtest=KEY,ytest=KEY]][,layout=nchw|nhwc,test=0.1,seed=1]
//	csv:FILE[,TESTFILE][,label=COLUMN,header=auto|yes|no,sep=comma|semicolon|tab,norm=standard|none,test=0.1,seed=1]
//
// Every format but npz may be compressed by gzip, which is recognised
// by its first bytes. docs/data.md describes the formats for users.
//
// Scaling. Bytes become (v/255 − mean)/std, with mean and standard deviation of
// each channel over the part to train on, in both parts; MNIST so gets its usual
// 0.1307 and 0.3081. Columns of CSV are standardised likewise. Numbers of npy and
// npz other than uint8 are taken as they are.
//
// The part to test on. Formats with test files use them. Otherwise test=F of the
// samples, rounded and at least one, chosen by a permutation of seed, become the
// test part; of a text it is the last F of its tokens, because windows chosen at
// random would overlap what was trained on. The same specification makes the same
// parts in every process.
//
// Labels are 0, 1, 2, …; the number of classes is one more than the largest in
// either part. Tokens are numbered by falling frequency in the part to train on,
// and 0 is a token that is not in the vocabulary.
//
// Files are untrusted: the sizes in a header are compared with the size of the file (for gzip: the
// most it could unpack to) and with Options.MaxBytes before memory is allocated, and an invalid file
// gives an *Error with the offset of the first wrong byte.
//
// The order of samples is a Stream: a position in it is turned into a sample by arithmetic alone, so
// workers with disjoint ranges of positions train on each sample once per epoch without
// communication.
package data
