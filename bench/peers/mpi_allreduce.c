/* All-reduce of MPI: the float32 sum in place, as star bench allreduce measures it.
 *
 * Arguments: bytes:inner:samples ... A sample is the time of `inner` operations in a
 * row, after a barrier, divided by inner; the slowest rank counts. Rank 0 writes one
 * line of JSON for each size. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static double cpu(void) {
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return u.ru_utime.tv_sec + u.ru_stime.tv_sec + 1e-6 * (u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

int main(int argc, char **argv) {
	MPI_Init(&argc, &argv);
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	for (int a = 1; a < argc; a++) {
		long bytes, inner, samples;
		if (sscanf(argv[a], "%ld:%ld:%ld", &bytes, &inner, &samples) != 3) {
			fprintf(stderr, "%s is not bytes:inner:samples\n", argv[a]);
			return 2;
		}
		float *v = malloc(bytes + 64);
		memset(v, 0, bytes);
		double used = 0;
		if (rank == 0) printf("{\"bytes\":%ld,\"times\":[", bytes);
		for (long s = -1; s < samples; s++) { /* one to warm up */
			MPI_Barrier(MPI_COMM_WORLD);
			double c = cpu(), t = MPI_Wtime(), mine, slowest;
			for (long i = 0; i < inner; i++)
				MPI_Allreduce(MPI_IN_PLACE, v, bytes / 4, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
			mine = (MPI_Wtime() - t) / inner;
			c = cpu() - c;
			MPI_Reduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
			if (s < 0) continue;
			used += c;
			if (rank == 0) printf("%s%.9f", s ? "," : "", slowest);
		}
		double total = 0;
		MPI_Reduce(&used, &total, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
		if (rank == 0) printf("],\"ops\":%ld,\"cpu\":%.9f}\n", inner * samples, total);
		free(v);
	}
	MPI_Finalize();
	return 0;
}
