/* A webhook receiver that costs as little as one can: one thread, epoll, keep-alive, pipelining.
 *
 *   sink            listens on a free loopback port, prints it, and leaves when its standard input ends
 *
 * Every request is answered with 200 once its head and its Content-Length body have arrived whole. The body is
 * counted, not kept. GET answers with the number of POSTs so far, so that a benchmark can check that what it
 * calls delivered was received.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { HEAD_MAX = 16384, READ_MAX = 262144, OUT_MAX = 65536, MAX_FD = 4096, EVENTS = 512 };

struct connection {
    size_t head_len;   /* bytes of an unfinished head, in head */
    size_t body_left;  /* bytes of the current body that have not come yet */
    int in_body;
    int is_get;
    char head[HEAD_MAX];
};

static struct connection *connections[MAX_FD];
static char input[READ_MAX];
static char output[OUT_MAX];
static size_t output_len;
static unsigned long posts;

static const char OK[] = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok";

static void drop(int fd) {
    free(connections[fd]);
    connections[fd] = NULL;
    close(fd);
}

/* The length that a head (terminated by NUL) promises; no chunked bodies here. */
static size_t content_length(const char *head) {
    const char *line = head;
    while ((line = strstr(line, "\r\n")) != NULL) {
        line += 2;
        if (strncasecmp(line, "content-length:", 15) == 0) return strtoul(line + 15, NULL, 10);
    }
    return 0;
}

static int answer(struct connection *c) {
    char counted[160];
    const char *text = OK;
    size_t len = sizeof OK - 1;
    if (c->is_get) {
        char number[24];
        int digits = snprintf(number, sizeof number, "%lu", posts);
        len = (size_t)snprintf(counted, sizeof counted, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", digits, number);
        text = counted;
    } else {
        posts++;
    }
    if (output_len + len > OUT_MAX) return -1; /* more pipelined requests than anyone here sends */
    memcpy(output + output_len, text, len);
    output_len += len;
    c->in_body = 0;
    c->head_len = 0;
    return 0;
}

/* Feed bytes that have arrived; -1 ends the connection. */
static int feed(struct connection *c, const char *data, size_t len) {
    while (len > 0 || (c->in_body && c->body_left == 0)) {
        if (c->in_body) {
            size_t part = len < c->body_left ? len : c->body_left;
            data += part;
            len -= part;
            c->body_left -= part;
            if (c->body_left > 0) return 0;
            if (answer(c) < 0) return -1;
            continue;
        }
        size_t room = HEAD_MAX - 1 - c->head_len;
        size_t part = len < room ? len : room;
        if (part == 0) return -1;
        size_t before = c->head_len;
        memcpy(c->head + before, data, part);
        c->head_len += part;
        size_t from = before > 3 ? before - 3 : 0;
        char *end = memmem(c->head + from, c->head_len - from, "\r\n\r\n", 4);
        if (end == NULL) {
            data += part;
            len -= part;
            continue;
        }
        size_t head_size = (size_t)(end - c->head) + 4;
        size_t used = head_size - before;
        end[2] = '\0';
        c->is_get = strncmp(c->head, "GET ", 4) == 0;
        c->body_left = content_length(c->head);
        c->in_body = 1;
        data += used;
        len -= used;
    }
    return 0;
}

static void serve(int fd) {
    struct connection *c = connections[fd];
    ssize_t got = read(fd, input, sizeof input);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    output_len = 0;
    if (got <= 0 || feed(c, input, (size_t)got) < 0) {
        drop(fd);
        return;
    }
    /* Answers are small and the peer reads them: a short write means that it does not. */
    if (output_len > 0 && write(fd, output, output_len) != (ssize_t)output_len) drop(fd);
}

static void greet(int listener, int poll_fd) {
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (fd >= MAX_FD || (connections[fd] = calloc(1, sizeof(struct connection))) == NULL) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, fd, &event);
    }
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct epoll_event events[EVENTS];
    signal(SIGPIPE, SIG_IGN);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    int poll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (listener < 0 || poll_fd < 0 || bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, 1024) < 0 || getsockname(listener, (struct sockaddr *)&address, &size) < 0) {
        perror("sink");
        return 1;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(poll_fd, EPOLL_CTL_ADD, listener, &event);
    event.data.fd = STDIN_FILENO;
    if (epoll_ctl(poll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event) < 0) {
        perror("sink: standard input must be a pipe");
        return 1;
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        int ready = epoll_wait(poll_fd, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                greet(listener, poll_fd);
            } else if (fd == STDIN_FILENO) {
                char byte;
                if (read(STDIN_FILENO, &byte, 1) <= 0) return 0; /* whoever started us is gone */
            } else if (connections[fd] != NULL) {
                serve(fd);
            }
        }
    }
}
