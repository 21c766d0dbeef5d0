/* What the lab's programs share: clocks, settings as name=value, random numbers, a heap of what is due.
 *
 * Law: with the same seed a program draws the same numbers in the same order. Times are nanoseconds; a setting that is a
 * time is written in microseconds and has a name that ends in -us. */
#ifndef LAB_H
#define LAB_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>

typedef int64_t s64;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;

#define SECOND 1000000000ll
#define MICROSECOND 1000ll

/* ---- errors ---- */

static inline void __attribute__((noreturn, format(printf, 1, 2))) fail(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(1);
}

/* The value of a call that must not fail. */
static inline int check(int value, const char *what)
{
    if (value < 0)
        fail("%s: %s", what, strerror(errno));
    return value;
}

static inline void *grow(void *memory, size_t bytes)
{
    memory = realloc(memory, bytes);
    if (!memory)
        fail("out of memory");
    return memory;
}

/* ---- clocks ---- */

static inline s64 clock_ns(clockid_t clock)
{
    struct timespec time;

    clock_gettime(clock, &time);
    return time.tv_sec * SECOND + time.tv_nsec;
}

static inline struct timespec timespec_of(s64 ns)
{
    ns = ns > 0 ? ns : 0;
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

/* Otherwise the kernel may wake a program 50 us late. */
static inline void wake_punctually(void)
{
    prctl(PR_SET_TIMERSLACK, 1);
}

/* ---- random numbers ---- */

struct random {
    u64 at;
};

static inline u64 random_u64(struct random *random)
{
    u64 x = random->at += 0x9E3779B97F4A7C15ull;

    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ x >> 27) * 0x94D049BB133111EBull;
    return x ^ x >> 31;
}

/* In (0, 1), so that its logarithm is finite. */
static inline double random_unit(struct random *random)
{
    return ((random_u64(random) >> 11) + 0.5) * 0x1p-53;
}

static inline double random_normal(struct random *random)
{
    return sqrt(-2 * log(random_unit(random))) * cos(2 * M_PI * random_unit(random));
}

/* constant:VALUE, uniform:LEAST:MOST, exponential:MEAN, bimodal:ONE:OTHER:SHARE_OF_OTHER, pareto:MEAN:EXPONENT,
 * lognormal:MEDIAN:SIGMA:MOST, page (the sizes of objects in web pages) */
struct distribution {
    char kind;
    double parameters[3];
};

/* Medians and maxima of CSS, JS, HTML and images in the Pirate paper, section 4.1. The largest of some thousand lognormal
 * numbers lies 3.7 sigma above the median: that gives sigma. Kinds are drawn as often as typical pages hold them. */
static const struct {
    double up_to, median, most;
} page_kinds[] = {{0.15, 11800, 1.2e6}, {0.50, 19600, 4.05e6}, {0.55, 39500, 2.65e6}, {1.00, 20800, 8.86e6}};

static inline double random_lognormal(struct random *random, double median, double sigma, double most)
{
    return fmin(most, median * exp(sigma * random_normal(random)));
}

static inline double draw(const struct distribution *from, struct random *random)
{
    const double *p = from->parameters;

    switch (from->kind) {
    case 'u':
        return p[0] + (p[1] - p[0]) * random_unit(random);
    case 'e':
        return -p[0] * log(random_unit(random));
    case 'b':
        return random_unit(random) < p[2] ? p[1] : p[0];
    case 'p':
        return p[0] * (p[1] - 1) / p[1] * pow(random_unit(random), -1 / p[1]);
    case 'l':
        return random_lognormal(random, p[0], p[1], p[2]);
    case 'w': {
        double which = random_unit(random);
        int kind = 0;

        while (which > page_kinds[kind].up_to)
            kind++;
        return random_lognormal(
            random, page_kinds[kind].median, log(page_kinds[kind].most / page_kinds[kind].median) / 3.7, page_kinds[kind].most);
    }
    default:
        return p[0];
    }
}

static inline struct distribution read_distribution(const char *text)
{
    static const struct {
        const char *name;
        char kind;
        int parameters;
    } known[] = {{"constant", 'c', 1}, {"uniform", 'u', 2}, {"exponential", 'e', 1}, {"bimodal", 'b', 3}, {"pareto", 'p', 2},
        {"lognormal", 'l', 3}, {"page", 'w', 0}};
    size_t length = strcspn(text, ":");

    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) == length && !strncmp(text, known[i].name, length)) {
            struct distribution read = {.kind = known[i].kind};
            double *p = read.parameters;
            int count = sscanf(text + length, ":%lf:%lf:%lf", &p[0], &p[1], &p[2]);

            if ((count < 0 ? 0 : count) == known[i].parameters)
                return read;
        }
    }
    fail("not a distribution: %s", text);
}

/* ---- settings ---- */

enum kind { INTEGER, NUMBER, TEXT, DISTRIBUTION };

struct setting {
    const char *name;
    enum kind kind;
    void *to;
};

/* Every argument is name=value; the last setting of the table has no name. */
static inline void read_settings(int count, char **arguments, const struct setting *settings)
{
    for (int i = 1; i < count; i++) {
        const struct setting *s = settings;
        char *value = strchr(arguments[i], '=');
        char *end = NULL;

        while (s->name &&
               !(value && strlen(s->name) == (size_t)(value - arguments[i]) && !strncmp(s->name, arguments[i], strlen(s->name))))
            s++;
        if (!s->name)
            fail("not a setting: %s", arguments[i]);
        value++;
        if (s->kind == INTEGER)
            *(s64 *)s->to = strtoll(value, &end, 10);
        else if (s->kind == NUMBER)
            *(double *)s->to = strtod(value, &end);
        else if (s->kind == TEXT)
            *(const char **)s->to = value;
        else
            *(struct distribution *)s->to = read_distribution(value);
        if (end && (end == value || *end))
            fail("not a number: %s", arguments[i]);
    }
}

/* ---- what is due ---- */

/* Items by due time; of those due at the same time, the first added. */
struct due {
    s64 at_ns;
    u64 order;
    u32 thing;
};

struct heap {
    struct due *dues;
    u32 count, room;
    u64 order;
};

static inline int due_before(const struct due *a, const struct due *b)
{
    return a->at_ns < b->at_ns || (a->at_ns == b->at_ns && a->order < b->order);
}

static inline void heap_push(struct heap *heap, s64 at_ns, u32 thing)
{
    struct due due = {at_ns, heap->order++, thing};
    u32 i = heap->count++;

    if (heap->count > heap->room) {
        heap->room = heap->room ? 2 * heap->room : 1024;
        heap->dues = grow(heap->dues, heap->room * sizeof *heap->dues);
    }
    for (; i && due_before(&due, &heap->dues[(i - 1) / 2]); i = (i - 1) / 2)
        heap->dues[i] = heap->dues[(i - 1) / 2];
    heap->dues[i] = due;
}

static inline struct due heap_pop(struct heap *heap)
{
    struct due first = heap->dues[0], last = heap->dues[--heap->count];
    u32 i = 0, child;

    for (; (child = 2 * i + 1) < heap->count; i = child) {
        if (child + 1 < heap->count && due_before(&heap->dues[child + 1], &heap->dues[child]))
            child++;
        if (!due_before(&heap->dues[child], &last))
            break;
        heap->dues[i] = heap->dues[child];
    }
    heap->dues[i] = last;
    return first;
}

/* ---- addresses ---- */

/* A socket's address, of IPv4 or IPv6; returns its length. */
static inline socklen_t address_of(const char *text, s64 port, struct sockaddr_storage *address)
{
    struct sockaddr_in *four = (void *)address;
    struct sockaddr_in6 *six = (void *)address;

    memset(address, 0, sizeof *address);
    if (inet_pton(AF_INET, text, &four->sin_addr) == 1) {
        four->sin_family = AF_INET;
        four->sin_port = htons(port);
        return sizeof *four;
    }
    if (inet_pton(AF_INET6, text, &six->sin6_addr) != 1)
        fail("not an address: %s", text);
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(port);
    return sizeof *six;
}

#endif
