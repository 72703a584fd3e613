// Preloaded into a process: it can reach no other machine. What it tries is refused, and written to the file $NO_NETWORK_LOG.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void note(const char *what, const char *where) {
    char line[256];
    int length = snprintf(line, sizeof line, "%s %s\n", what, where);
    int file = open(getenv("NO_NETWORK_LOG"), O_WRONLY | O_CREAT | O_APPEND, 0600);
    if (file >= 0) {
        if (write(file, line, length) < 0) {}
        close(file);
    }
}

static bool elsewhere(const struct sockaddr *address, char *text, size_t size) {
    if (!address) return false;
    if (address->sa_family == AF_INET) {
        auto place = &((const struct sockaddr_in *)address)->sin_addr;
        inet_ntop(AF_INET, place, text, size);
        return ntohl(place->s_addr) >> 24 != 127;
    }
    if (address->sa_family == AF_INET6) {
        auto place = &((const struct sockaddr_in6 *)address)->sin6_addr;
        inet_ntop(AF_INET6, place, text, size);
        return !IN6_IS_ADDR_LOOPBACK(place);
    }
    return false;
}

extern "C" int connect(int socket, const struct sockaddr *address, socklen_t length) {
    static auto real = (decltype(&connect))dlsym(RTLD_NEXT, "connect");
    char text[64];
    if (elsewhere(address, text, sizeof text)) {
        note("connect", text);
        errno = ENETUNREACH;
        return -1;
    }
    return real(socket, address, length);
}

extern "C" ssize_t sendto(int socket, const void *data, size_t size, int flags, const struct sockaddr *address, socklen_t length) {
    static auto real = (decltype(&sendto))dlsym(RTLD_NEXT, "sendto");
    char text[64];
    if (elsewhere(address, text, sizeof text)) {
        note("sendto", text);
        errno = ENETUNREACH;
        return -1;
    }
    return real(socket, data, size, flags, address, length);
}

extern "C" int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static auto real = (decltype(&getaddrinfo))dlsym(RTLD_NEXT, "getaddrinfo");
    char own[256] = "";
    gethostname(own, sizeof own - 1);
    if (node && *node && strcmp(node, "localhost") && strcmp(node, own) && strncmp(node, "127.", 4) && strcmp(node, "::1")) {
        note("getaddrinfo", node);
        return EAI_AGAIN;
    }
    return real(node, service, hints, found);
}
