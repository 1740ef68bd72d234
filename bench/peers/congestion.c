/* Preloaded into peers that have no setting for it: TCP sockets get the congestion
 * control that PEER_CONGESTION names, as ours do. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

int socket(int domain, int type, int protocol) {
	static int (*real)(int, int, int);
	if (!real) real = (int (*)(int, int, int))dlsym(RTLD_NEXT, "socket");
	int fd = real(domain, type, protocol);
	const char *name = getenv("PEER_CONGESTION");
	if (fd >= 0 && name && (domain == AF_INET || domain == AF_INET6) && (type & 0xf) == SOCK_STREAM)
		setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, strlen(name));
	return fd;
}
