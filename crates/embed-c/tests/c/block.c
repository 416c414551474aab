/*
 * Tests every function of the header from C. Prints `N checks, M failed`, and exits with 1 if M >
 * 0. The argument is a folder for files.
 */
#include <fieldstone_block.h>

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int checks, failures;

#define CHECK(condition)                                                          \
    do {                                                                          \
        checks++;                                                                 \
        if (!(condition)) {                                                       \
            failures++;                                                           \
            printf("%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, error.message); \
        }                                                                         \
    } while (0)

static fieldstone_block_error error;

static fieldstone_block *open_device(const char *target, const fieldstone_block_options *options)
{
    fieldstone_block *device = NULL;
    CHECK(fieldstone_block_open(target, options, &device, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(device != NULL && error.message[0] == 0);
    if (device == NULL)
        exit(1);
    return device;
}

static void refusals(void)
{
    fieldstone_block *device = (fieldstone_block *)&error;
    CHECK(fieldstone_block_open(NULL, NULL, &device, &error) == FIELDSTONE_BLOCK_NULL);
    CHECK(device == NULL && strcmp(error.message, "target is NULL") == 0);
    CHECK(fieldstone_block_open("ram:1M", NULL, NULL, &error) == FIELDSTONE_BLOCK_NULL);
    CHECK(fieldstone_block_open("rum:1M", NULL, &device, NULL) == FIELDSTONE_BLOCK_BAD_TARGET);
    CHECK(fieldstone_block_open("file:/nowhere/at/all", NULL, &device, &error)
          == FIELDSTONE_BLOCK_CANNOT_OPEN);
    CHECK(strstr(error.message, "/nowhere/at/all") != NULL);
    const char *layers[] = {"cachet:on=1", NULL};
    fieldstone_block_options options;
    memset(&options, 0, sizeof options);
    options.layers = layers;
    options.layer_count = 1;
    CHECK(fieldstone_block_open("ram:1M", &options, &device, &error) == FIELDSTONE_BLOCK_BAD_LAYER);
    options.layer_count = 65;
    CHECK(fieldstone_block_open("ram:1M", &options, &device, &error)
          == FIELDSTONE_BLOCK_OUT_OF_RANGE);
    layers[0] = "cache:off";
    options.layer_count = 2;
    CHECK(fieldstone_block_open("ram:1M", &options, &device, &error) == FIELDSTONE_BLOCK_NULL);
    options.layer_count = 0;
    options.requests = 65537;
    CHECK(fieldstone_block_open("ram:1M", &options, &device, &error)
          == FIELDSTONE_BLOCK_OUT_OF_RANGE);
    options.requests = 0;
    options.cores = 65;
    CHECK(fieldstone_block_open("ram:1M", &options, &device, &error)
          == FIELDSTONE_BLOCK_OUT_OF_RANGE);
    CHECK(device == NULL && strstr(error.message, "65 cores") != NULL);
    options.cores = 0;

    CHECK(fieldstone_block_size(NULL) == 0 && fieldstone_block_eventfd(NULL) == -1);
    CHECK(fieldstone_block_completions(NULL, NULL, 1, 0) == 0);
    CHECK(fieldstone_block_close(NULL, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_flush(NULL, &error) == FIELDSTONE_BLOCK_NULL);

    char byte = 0;
    device = open_device("ram:1M", NULL);
    CHECK(fieldstone_block_size(device) == 1 << 20);
    CHECK(fieldstone_block_read(device, 1 << 20, &byte, 1, &error)
          == FIELDSTONE_BLOCK_OUT_OF_RANGE);
    CHECK(fieldstone_block_read(device, 0, NULL, 1, &error) == FIELDSTONE_BLOCK_NULL);
    CHECK(fieldstone_block_read(device, 0, NULL, 0, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_read(device, 0, &byte, FIELDSTONE_BLOCK_REQUEST_MAX + 1, &error)
          == FIELDSTONE_BLOCK_TOO_LONG);
    CHECK(fieldstone_block_write(device, 0, &byte, (size_t)-1, 0, &error)
          == FIELDSTONE_BLOCK_TOO_LONG);
    CHECK(fieldstone_block_write(device, 0, &byte, 1, FIELDSTONE_BLOCK_NO_HOLE, &error)
          == FIELDSTONE_BLOCK_OUT_OF_RANGE);
    CHECK(fieldstone_block_write_zeroes(device, 0, 1, 4, &error) == FIELDSTONE_BLOCK_OUT_OF_RANGE);
    CHECK(fieldstone_block_discard(device, 0, FIELDSTONE_BLOCK_DISCARD_MAX + 1, &error)
          == FIELDSTONE_BLOCK_TOO_LONG);
    struct iovec none = {&byte, 1};
    CHECK(fieldstone_block_readv(device, 0, &none, FIELDSTONE_BLOCK_IOVECS_MAX + 1, &error)
          == FIELDSTONE_BLOCK_OUT_OF_RANGE);
    CHECK(fieldstone_block_readv(device, 0, NULL, 1, &error) == FIELDSTONE_BLOCK_NULL);
    CHECK(fieldstone_block_close(device, &error) == FIELDSTONE_BLOCK_OK);

    options.requests = 0;
    options.read_only = 1;
    device = open_device("ram:1M", &options);
    CHECK(fieldstone_block_write(device, 0, &byte, 1, 0, &error) == FIELDSTONE_BLOCK_READ_ONLY);
    CHECK(fieldstone_block_close(device, NULL) == FIELDSTONE_BLOCK_OK);

    CHECK(strcmp(fieldstone_block_status_name(FIELDSTONE_BLOCK_INTERNAL),
                 "FIELDSTONE_BLOCK_INTERNAL") == 0);
    CHECK(strcmp(fieldstone_block_status_name(99), "unknown status") == 0);
    CHECK(fieldstone_block_version()[0] != 0);
}

static void blocking(const char *target)
{
    char a[5], b[7], text[] = "fieldstone";
    fieldstone_block *device = open_device(target, NULL);
    struct iovec parts[] = {{text, 5}, {NULL, 0}, {text + 5, 5}};
    CHECK(fieldstone_block_writev(device, 4093, parts, 3, 0, &error) == FIELDSTONE_BLOCK_OK);
    struct iovec back[] = {{a, sizeof a}, {b, sizeof b}};
    CHECK(fieldstone_block_readv(device, 4092, back, 2, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(memcmp(a, "\0fiel", 5) == 0 && memcmp(b, "dstone\0", 7) == 0);
    /* Both buffers are the same memory: the bytes of the second one stay. */
    struct iovec twice[] = {{a, 5}, {a, 5}};
    CHECK(fieldstone_block_readv(device, 4093, twice, 2, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(memcmp(a, "stone", 5) == 0);
    CHECK(fieldstone_block_write_zeroes(device, 4094, 3, FIELDSTONE_BLOCK_NO_HOLE, &error)
          == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_read(device, 4093, b, 6, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(memcmp(b, "f\0\0\0ds", 6) == 0);
    CHECK(fieldstone_block_discard(device, 0, 8192, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_read(device, 4093, b, 6, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(memcmp(b, "\0\0\0\0\0\0", 6) == 0);
    CHECK(fieldstone_block_write(device, 77, "stays", 5, FIELDSTONE_BLOCK_FUA, &error)
          == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_flush(device, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_close(device, &error) == FIELDSTONE_BLOCK_OK);
}

/* A chain of requests: each callback submits the next request. */
struct chain {
    pthread_mutex_t lock;
    pthread_cond_t over;
    fieldstone_block *device;
    int left, bad, is_over;
    char byte;
};

static void next_of_chain(void *arg, int status)
{
    struct chain *chain = arg;
    fieldstone_block_error own;
    pthread_mutex_lock(&chain->lock);
    chain->bad += status != FIELDSTONE_BLOCK_OK;
    chain->bad += fieldstone_block_flush(chain->device, &own) != FIELDSTONE_BLOCK_IN_CALLBACK;
    chain->bad += fieldstone_block_close(chain->device, NULL) != FIELDSTONE_BLOCK_IN_CALLBACK;
    time_t began = time(NULL);
    fieldstone_block_completion completion;
    chain->bad += fieldstone_block_completions(chain->device, &completion, 1, 60000) != 0;
    chain->bad += time(NULL) - began > 30;
    if (chain->left-- > 0) {
        chain->bad += fieldstone_block_aio_read(chain->device, 5, &chain->byte, 1, next_of_chain,
                                                chain, &own) != FIELDSTONE_BLOCK_OK;
    } else {
        chain->is_over = 1;
        pthread_cond_signal(&chain->over);
    }
    pthread_mutex_unlock(&chain->lock);
}

static void callbacks(void)
{
    struct chain chain;
    memset(&chain, 0, sizeof chain);
    pthread_mutex_init(&chain.lock, NULL);
    pthread_cond_init(&chain.over, NULL);
    chain.device = open_device("ram:1M", NULL);
    chain.left = 1000;
    char *text = malloc(1);
    *text = 'x';
    CHECK(fieldstone_block_aio_write(chain.device, 5, text, 1, 0, next_of_chain, &chain, &error)
          == FIELDSTONE_BLOCK_OK);
    /* The call has copied the byte. */
    free(text);
    pthread_mutex_lock(&chain.lock);
    while (!chain.is_over)
        pthread_cond_wait(&chain.over, &chain.lock);
    pthread_mutex_unlock(&chain.lock);
    CHECK(chain.bad == 0 && chain.byte == 'x');
    CHECK(fieldstone_block_aio_read(chain.device, 1 << 20, &chain.byte, 1, next_of_chain, &chain,
                                    &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_close(chain.device, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(chain.bad == 1); /* the read past the end had its answer before the device was closed */
    pthread_cond_destroy(&chain.over);
    pthread_mutex_destroy(&chain.lock);
}

/* A read into a buffer that the callback frees: no part of the library uses it afterwards. */
struct large_read {
    char *buffer;
    uint64_t offset;
    int *bad, *left;
};

enum { LARGE = 65536 };

static void free_large(void *arg, int status)
{
    struct large_read *read = arg;
    for (int i = 0; i < LARGE; i++)
        if (read->buffer[i] != (char)((read->offset + (uint64_t)i) % 251))
            status = FIELDSTONE_BLOCK_IO;
    free(read->buffer);
    __atomic_add_fetch(read->bad, status != FIELDSTONE_BLOCK_OK, __ATOMIC_SEQ_CST);
    __atomic_sub_fetch(read->left, 1, __ATOMIC_SEQ_CST);
}

/* Reads into memory that is aligned, and into memory that is not. */
static void large_reads(const char *target, int direct)
{
    enum { COUNT = 12 };
    static char pattern[1 << 20];
    struct large_read reads[COUNT];
    fieldstone_block_options options;
    int bad = 0, left = COUNT;
    memset(&options, 0, sizeof options);
    options.direct = direct;
    fieldstone_block *device = NULL;
    /* Some file systems, such as tmpfs, have no O_DIRECT. */
    if (direct && fieldstone_block_open(target, &options, &device, NULL) != FIELDSTONE_BLOCK_OK)
        return;
    if (!direct)
        device = open_device(target, &options);
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = (char)(i % 251);
    CHECK(fieldstone_block_write(device, 0, pattern, sizeof pattern, 0, &error)
          == FIELDSTONE_BLOCK_OK);
    for (int i = 0; i < COUNT; i++) {
        void *aligned = NULL;
        CHECK(posix_memalign(&aligned, 4096, LARGE) == 0);
        if (i % 3 == 0) {
            free(aligned);
            aligned = malloc(LARGE);
        }
        reads[i].buffer = aligned;
        reads[i].offset = (uint64_t)i * LARGE + (i % 4 == 1 ? 100 : 0);
        reads[i].bad = &bad;
        reads[i].left = &left;
        CHECK(fieldstone_block_aio_read(device, reads[i].offset, reads[i].buffer, LARGE, free_large,
                                        &reads[i], &error) == FIELDSTONE_BLOCK_OK);
    }
    CHECK(fieldstone_block_close(device, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(bad == 0 && left == 0);
}

static void completions(void)
{
    enum { COUNT = 8, LEN = 600 };
    static char data[COUNT][LEN], back[COUNT][LEN];
    fieldstone_block_options options;
    fieldstone_block_completion done[COUNT];
    memset(&options, 0, sizeof options);
    options.requests = COUNT;
    options.cores = 2;
    fieldstone_block *device = open_device("ram:1M", &options);
    struct pollfd poll_for = {fieldstone_block_eventfd(device), POLLIN, 0};
    CHECK(poll(&poll_for, 1, 0) == 0);
    CHECK(fieldstone_block_completions(device, done, COUNT, 0) == 0);

    for (int round = 0; round < 4; round++) {
        int taken = 0, seen = 0;
        for (int i = 0; i < COUNT; i++) {
            memset(data[i], i + 1, LEN);
            struct iovec out[] = {{data[i], 1}, {data[i] + 1, LEN - 1}};
            struct iovec in[] = {{back[i], LEN - 1}, {back[i] + LEN - 1, 1}};
            uint64_t offset = (uint64_t)i * LEN;
            int status = FIELDSTONE_BLOCK_INTERNAL;
            switch (round) {
            case 0:
                status = fieldstone_block_aio_writev(device, offset, out, 2, 0, NULL, data[i], &error);
                break;
            case 1:
                status = fieldstone_block_aio_readv(device, offset, in, 2, NULL, data[i], &error);
                break;
            case 2:
                status = i % 2 ? fieldstone_block_aio_flush(device, NULL, data[i], &error)
                               : fieldstone_block_aio_discard(device, offset, LEN, NULL, data[i],
                                                              &error);
                break;
            case 3:
                status = fieldstone_block_aio_write_zeroes(device, offset, LEN, 0, NULL, data[i],
                                                           &error);
                break;
            }
            CHECK(status == FIELDSTONE_BLOCK_OK);
        }
        /*
         * No answer has been taken, so the completion queue has no place left. The message names
         * this cause once the device itself has room again.
         */
        CHECK(fieldstone_block_aio_flush(device, NULL, NULL, &error) == FIELDSTONE_BLOCK_FULL);
        CHECK(fieldstone_block_flush(device, NULL) == FIELDSTONE_BLOCK_OK);
        while (fieldstone_block_aio_flush(device, NULL, NULL, &error) == FIELDSTONE_BLOCK_FULL
               && strstr(error.message, "take earlier answers") == NULL)
            poll(NULL, 0, 1);
        CHECK(strstr(error.message, "take earlier answers") != NULL);
        while (taken < COUNT) {
            CHECK(poll(&poll_for, 1, 30000) == 1);
            size_t count = fieldstone_block_completions(device, done, 3, 0);
            CHECK(count <= 3);
            for (size_t i = 0; i < count; i++) {
                CHECK(done[i].status == FIELDSTONE_BLOCK_OK);
                seen |= 1 << (((char *)done[i].arg - data[0]) / LEN);
            }
            taken += (int)count;
        }
        CHECK(taken == COUNT && seen == (1 << COUNT) - 1);
        CHECK(poll(&poll_for, 1, 0) == 0);
        if (round == 1)
            CHECK(memcmp(data, back, sizeof data) == 0);
    }
    CHECK(fieldstone_block_read(device, 0, back, sizeof back, &error) == FIELDSTONE_BLOCK_OK);
    memset(data, 0, sizeof data);
    CHECK(memcmp(data, back, sizeof data) == 0);
    CHECK(fieldstone_block_aio_flush(device, NULL, NULL, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_completions(device, done, COUNT, 30000) == 1 && done[0].arg == NULL);
    /* No call takes the answer. */
    CHECK(fieldstone_block_aio_flush(device, NULL, NULL, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_close(device, &error) == FIELDSTONE_BLOCK_OK);
}

/*
 * The program blocks a signal in its only own thread, and waits for it there. No thread of the
 * library takes the signal, which would end the program.
 */
static void signals(const char *target)
{
    sigset_t term;
    struct timespec patience = {30, 0};
    fieldstone_block *devices[] = {open_device("ram:1M", NULL), open_device(target, NULL)};
    sigemptyset(&term);
    sigaddset(&term, SIGTERM);
    CHECK(pthread_sigmask(SIG_BLOCK, &term, NULL) == 0);
    CHECK(kill(getpid(), SIGTERM) == 0);
    CHECK(sigtimedwait(&term, NULL, &patience) == SIGTERM);
    CHECK(pthread_sigmask(SIG_UNBLOCK, &term, NULL) == 0);
    for (int i = 0; i < 2; i++)
        CHECK(fieldstone_block_close(devices[i], &error) == FIELDSTONE_BLOCK_OK);
}

/* A child process of the time when a file was open does not keep the file locked. */
static void forked(const char *target)
{
    fieldstone_block *device = open_device(target, NULL);
    pid_t child = fork();
    if (child == 0) {
        pause();
        _exit(1);
    }
    CHECK(child > 0);
    CHECK(fieldstone_block_close(device, &error) == FIELDSTONE_BLOCK_OK);
    device = NULL;
    CHECK(fieldstone_block_open(target, NULL, &device, &error) == FIELDSTONE_BLOCK_OK);
    CHECK(fieldstone_block_close(device, &error) == FIELDSTONE_BLOCK_OK);
    if (child > 0) {
        kill(child, SIGKILL);
        CHECK(waitpid(child, NULL, 0) == child);
    }
}

int main(int argc, char **argv)
{
    char path[4096], target[4200], back[5];
    if (argc != 2)
        return 2;
    snprintf(path, sizeof path, "%s/disk", argv[1]);
    snprintf(target, sizeof target, "file:%s", path);
    FILE *file = fopen(path, "w");
    if (file == NULL || ftruncate(fileno(file), 1 << 20) != 0 || fclose(file) != 0)
        return 2;
    refusals();
    blocking("ram:1M");
    blocking(target);
    file = fopen(path, "r");
    CHECK(file != NULL && fseek(file, 77, SEEK_SET) == 0 && fread(back, 1, 5, file) == 5);
    CHECK(memcmp(back, "stays", 5) == 0);
    if (file != NULL)
        fclose(file);
    callbacks();
    large_reads("ram:1M", 0);
    large_reads(target, 0);
    large_reads(target, 1);
    completions();
    signals(target);
    forked(target);
    printf("%d checks, %d failed\n", checks, failures);
    return failures > 0;
}
