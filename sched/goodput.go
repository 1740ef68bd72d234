package sched

import "slices"

// goodput returns how fast a job learns on 1, 2, 4, … GPUs, in iterations/s at its own batch size, with the best batch
// size for each number of GPUs. A sample in an iteration with b samples makes (noise+own)/(noise+b) of the progress of
// a sample in one with the job's own batch size; noise is the gradient noise scale (Pollux, Qiao et al., OSDI 2021,
// section 3.1). If it is unknown, the job's own batch size is used for it: then twice the samples make 4/3 of the
// progress.
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
