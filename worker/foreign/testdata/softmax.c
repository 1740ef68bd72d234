// Softmax regression as a program at the other end of the link of docs/link.md: the C library alone.
//
//	softmax FEATURES CLASSES SAMPLES FILE
//
// FILE holds SAMPLES records of FEATURES float32 and one int32, the class. STAR_LINK_FD is the link.
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <fcntl.h>
#include <unistd.h>

enum { ABOUT = 1, MEMORY, READY, COMPUTE, PART, DONE, EVALUATE, EVALUATED, LEASE, ERROR, STOP, LEAVE };

struct frame { uint32_t kind, bytes; uint64_t a, b, c; };

static int sock;

static void fail(const char *why) { perror(why); exit(1); }

static void sendall(uint32_t kind, uint64_t a, uint64_t b, uint64_t c, const void *body, uint32_t bytes) {
	struct frame f = {kind, bytes, a, b, c};
	struct iovec v[2] = {{&f, sizeof f}, {(void *)body, bytes}};
	if (writev(sock, v, bytes ? 2 : 1) != (ssize_t)(sizeof f + bytes)) fail("send");
}

static int readall(void *p, size_t n) {
	for (size_t got = 0; got < n;) {
		ssize_t k = read(sock, (char *)p + got, n - got);
		if (k < 0) fail("receive");
		if (k == 0) return 0;
		got += k;
	}
	return 1;
}

// The memory comes as a file descriptor beside a frame.
static int receive_memory(struct frame *f) {
	char control[CMSG_SPACE(sizeof(int))];
	struct iovec v = {f, sizeof *f};
	struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
	if (recvmsg(sock, &m, MSG_WAITALL) != sizeof *f || f->kind != MEMORY) return -1;
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	if (!c || c->cmsg_type != SCM_RIGHTS) return -1;
	int fd;
	memcpy(&fd, CMSG_DATA(c), sizeof fd);
	return fd;
}

static int features, classes;
static float *params, *grad; // classes rows of features, then classes biases

// Scores of one sample as probabilities; the loss of its class.
static double forward(const float *x, int y, double *p) {
	double top = -INFINITY, sum = 0;
	for (int k = 0; k < classes; k++) {
		p[k] = params[classes * features + k];
		for (int j = 0; j < features; j++) p[k] += (double)params[k * features + j] * x[j];
		if (p[k] > top) top = p[k];
	}
	double own = p[y] - top;
	for (int k = 0; k < classes; k++) sum += p[k] = exp(p[k] - top);
	for (int k = 0; k < classes; k++) p[k] /= sum;
	return log(sum) - own;
}

int main(int argc, char **argv) {
	if (argc != 5 || !getenv("STAR_LINK_FD")) { fprintf(stderr, "softmax FEATURES CLASSES SAMPLES FILE, with STAR_LINK_FD\n"); return 2; }
	features = atoi(argv[1]), classes = atoi(argv[2]);
	long samples = atol(argv[3]);
	sock = atoi(getenv("STAR_LINK_FD"));
	int file = open(argv[4], O_RDONLY);
	if (file < 0) fail(argv[4]);
	size_t record = 4 * features + 4;
	char *data = mmap(NULL, record * samples, PROT_READ, MAP_SHARED, file, 0);
	if (data == MAP_FAILED) fail(argv[4]);

	char about[512];
	int n = snprintf(about, sizeof about,
		"{\"name\":\"softmax\",\"program\":\"C\",\"layout\":[{\"name\":\"weight\",\"shape\":[%d,%d]},{\"name\":\"bias\",\"shape\":[%d]}],"
		"\"data\":\"records\",\"samples\":%ld,\"tests\":%ld,\"pid\":%d}", classes, features, classes, samples, samples, (int)getpid());
	sendall(ABOUT, 1, 0, 0, about, n);

	struct frame f;
	int fd = receive_memory(&f);
	if (fd < 0) { fprintf(stderr, "softmax: refused\n"); return 1; }
	char *m = mmap(NULL, f.a, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (m == MAP_FAILED) fail("memory");
	close(fd);
	uint64_t *head = (uint64_t *)m; // magic, version, size, params, number of them, gradient, buffers, number of them
	if (memcmp(m, "STARLINK", 8) || head[1] != 1) { fprintf(stderr, "softmax: another link\n"); return 1; }
	params = (float *)(m + head[3]), grad = (float *)(m + head[5]);
	for (uint64_t i = 0; i < head[4]; i++) params[i] = 0.01f * (float)((int)(i * 7 % 11) - 5);
	sendall(READY, 0, 0, 0, NULL, 0);

	double *p = malloc(classes * sizeof *p), *sum = malloc(head[4] * sizeof *sum);
	int64_t *index = NULL;
	while (readall(&f, sizeof f)) {
		index = realloc(index, f.bytes + 1);
		if (f.bytes && !readall(index, f.bytes)) break;
		double loss = 0;
		uint64_t correct = 0;
		if (f.kind == COMPUTE) {
			memset(sum, 0, head[4] * sizeof *sum);
			for (uint64_t i = 0; i < f.b; i++) {
				const float *x = (float *)(data + record * index[i]);
				int y = *(int32_t *)(x + features);
				loss += forward(x, y, p);
				for (int k = 0; k < classes; k++) {
					double d = p[k] - (k == y);
					for (int j = 0; j < features; j++) sum[k * features + j] += d * x[j];
					sum[classes * features + k] += d;
				}
			}
			int weights = classes * features;
			for (int i = weights; i < weights + classes; i++) grad[i] = sum[i] / f.b;
			if (f.c >> 63) sendall(PART, f.a, weights, 0, NULL, 0); // the biases are complete
			for (int i = 0; i < weights; i++) grad[i] = sum[i] / f.b;
			loss /= f.b;
			uint64_t bits;
			memcpy(&bits, &loss, 8);
			sendall(DONE, f.a, bits, 0, NULL, 0);
		} else if (f.kind == EVALUATE) {
			for (uint64_t i = 0; i < f.b; i++) {
				const float *x = (float *)(data + record * index[i]);
				int y = *(int32_t *)(x + features), best = 0;
				loss += forward(x, y, p);
				for (int k = 1; k < classes; k++) if (p[k] > p[best]) best = k;
				correct += best == y;
			}
			sendall(EVALUATED, f.a, correct, f.b, &loss, sizeof loss);
		} else if (f.kind == STOP) {
			return f.a;
		} // whoever keeps samples in memory has no use for LEASE
	}
	fprintf(stderr, "softmax: the agent is gone\n");
	return 1;
}
