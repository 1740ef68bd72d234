// Package checkpoint keeps the state of a training job on disk, so that a job
// can stop anywhere and go on, on another number of parameter servers if need be.
//
// A checkpoint is one directory:
//
//	shard-00000.safetensors     parameters and optimiser state of one range of the flat vector
//	shard-00001.safetensors     …
//	buffers.safetensors         what the model keeps beside its parameters, if anything
//	residual-00000.safetensors  what the codec of each worker has left out of its gradients, if it has one
//	manifest.json               what it is, and size and SHA-256 of every file
//
// Every parameter server writes its own file. Ranges are cut by elements, so a tensor may be cut
// too; the manifest says where everything is. The leader of the job writes the manifest, last: a
// directory with a manifest is complete. Each file is written under another name, flushed, renamed,
// and its directory flushed, so a crash at any moment leaves the checkpoint before it intact.
//
// The files are safetensors (github.com/huggingface/safetensors, format of
// 2022): eight bytes with the length of a JSON header, the header, then raw
// little-endian data. [Checkpoint.Export] writes one such file with the names of
// the model's tensors, which PyTorch and numpy read.
//
// All servers of the job must share the directory, or it must hold all files when it is opened. A
// checkpoint does not contain gradients that were in flight: their workers compute them again.
package checkpoint
