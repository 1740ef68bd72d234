// Package deploy is what hands jobs to the engines of clusters: the batch script of Slurm and the manifests of
// Kubernetes, which people use as they are, and star submit fills in.
package deploy

import "embed"

// Files are slurm/star.sbatch and the bases of k8s.
//
//go:embed slurm/star.sbatch k8s/*/*.yaml
var Files embed.FS
