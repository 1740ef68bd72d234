package sched

import "slices"

// goodput is how fast a job learns on 1, 2, 4, … GPUs, in iterations/s of its own batch size, with the batch size that is best on so many. An iteration with b samples
// makes (noise+own)/(noise+b) of the progress for each sample that one with its own batch size makes, noise being the gradient noise scale (Pollux, Qiao et al., OSDI
// 2021, section 3.1). Where that is not known it is taken to be the job's own batch size: then twice the samples make 4/3 of the progress.
func goodput(j *Job) []float64 {
	noise, own := j.Noise, float64(j.Batch)
	if noise == 0 {
		noise = own
	}
	best := slices.Clone(j.Rates)
	for _, b := range j.Batches {
		if b.Samples <= j.Batch {
			continue
		}
		samples := float64(b.Samples)
		progress := samples / own * (noise + own) / (noise + samples)
		for l, r := range b.Rates {
			if 1<<l > b.Samples || 1<<l > 64 {
				break
			}
			if l == len(best) {
				best = append(best, 0)
			}
			best[l] = max(best[l], r*progress)
		}
	}
	return best
}
