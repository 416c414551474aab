/*
 * Prints how many bytes of a device are not zero. Has up to 16 reads under way, and waits for them
 * with poll(), as an event loop would.
 *
 *     cc -o zero_check crates/embed-c/examples/zero_check.c -I crates/embed-c/include \
 *         -L target/release -lfieldstone_block -Wl,-rpath,$PWD/target/release
 *     ./zero_check file:disk.img
 */
#include <fieldstone_block.h>

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

#define UNDER_WAY 16
#define CHUNK_BYTES ((size_t)256 << 10)

/* A read, and the buffer for its bytes. */
struct chunk {
    size_t len;
    unsigned char bytes[CHUNK_BYTES];
};

/* Ends the program if a call or a request failed. */
static void check(int status, const char *message)
{
    if (status != FIELDSTONE_BLOCK_OK) {
        fprintf(stderr, "%s: %s\n", fieldstone_block_status_name(status), message);
        exit(1);
    }
}

/* Starts the next read. Returns 0 if there is nothing more to read. */
static int start(fieldstone_block *device, struct chunk *chunk, uint64_t *next)
{
    fieldstone_block_error error;
    uint64_t rest = fieldstone_block_size(device) - *next;
    if (rest == 0)
        return 0;
    chunk->len = rest < CHUNK_BYTES ? (size_t)rest : CHUNK_BYTES;
    check(fieldstone_block_aio_read(device, *next, chunk->bytes, chunk->len, NULL, chunk, &error),
          error.message);
    *next += chunk->len;
    return 1;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: zero_check TARGET\n");
        return 2;
    }
    fieldstone_block_error error;
    fieldstone_block_options options = {0};
    options.read_only = 1;
    fieldstone_block *device;
    check(fieldstone_block_open(argv[1], &options, &device, &error), error.message);

    struct chunk *chunks = calloc(UNDER_WAY, sizeof *chunks);
    if (chunks == NULL)
        return 1;
    uint64_t next = 0, not_zero = 0;
    int under_way = 0;
    for (int i = 0; i < UNDER_WAY; i++)
        under_way += start(device, &chunks[i], &next);
    while (under_way > 0) {
        struct pollfd ready = {fieldstone_block_eventfd(device), POLLIN, 0};
        poll(&ready, 1, -1);
        fieldstone_block_completion done[UNDER_WAY];
        size_t count = fieldstone_block_completions(device, done, UNDER_WAY, 0);
        for (size_t i = 0; i < count; i++) {
            struct chunk *chunk = done[i].arg;
            check(done[i].status, "a read failed");
            for (size_t at = 0; at < chunk->len; at++)
                not_zero += chunk->bytes[at] != 0;
            under_way += start(device, chunk, &next) - 1;
        }
    }
    printf("%" PRIu64 " of %" PRIu64 " bytes are not zero\n", not_zero,
           fieldstone_block_size(device));
    check(fieldstone_block_close(device, &error), error.message);
    free(chunks);
    return 0;
}
