/*
 * Encodes a file, loses shards, and gets them back in the two ways that there are.
 *
 *     cc -o encode crates/codes-c/examples/encode.c -I crates/codes-c/include \
 *         -L target/release -lfieldstone_codes -Wl,-rpath,$PWD/target/release
 *     ./encode README.md zigzag:4+2
 */
#include <fieldstone_codes.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if a call failed. */
static void check(int status, const fieldstone_error *error)
{
    if (status != FIELDSTONE_OK) {
        fprintf(stderr, "%s: %s\n", fieldstone_status_name(status), error->message);
        exit(1);
    }
}

static void *allocate(size_t count, size_t bytes)
{
    void *memory = calloc(count, bytes);
    if (memory == NULL) {
        fprintf(stderr, "out of memory\n");
        exit(1);
    }
    return memory;
}

/* The whole of a file, followed by zeros up to `room` bytes if that is more. */
static uint8_t *read_file(FILE *file, size_t len, size_t room)
{
    uint8_t *bytes = allocate(room > 0 ? room : 1, 1);
    if (fread(bytes, 1, len, file) != len) {
        fprintf(stderr, "the file changed while it was read\n");
        exit(1);
    }
    return bytes;
}

int main(int argc, char **argv)
{
    const char *profile = argc > 2 ? argv[2] : "rs:4+2";
    FILE *file = argc > 1 ? fopen(argv[1], "rb") : NULL;
    if (file == NULL || fseek(file, 0, SEEK_END) != 0 || ftell(file) < 0) {
        fprintf(stderr, "usage: %s FILE [CODE]\n", argv[0]);
        return 2;
    }
    size_t file_bytes = (size_t)ftell(file);
    rewind(file);

    fieldstone_error error;
    fieldstone_code *code;
    check(fieldstone_code_new(profile, &code, &error), &error);
    size_t k = fieldstone_code_k(code), m = fieldstone_code_m(code), n = k + m;

    /* The data shards are the file, cut into k pieces; the parities lie behind them. */
    uint64_t chunk_bytes;
    check(fieldstone_code_chunk_bytes(code, file_bytes, &chunk_bytes, &error), &error);
    size_t shard_bytes = (size_t)chunk_bytes;
    uint8_t *stripe = read_file(file, file_bytes, n * shard_bytes);
    fclose(file);
    uint8_t **shards = allocate(n, sizeof *shards);
    for (size_t i = 0; i < n; i++) {
        shards[i] = stripe + i * shard_bytes;
    }
    check(fieldstone_code_encode(code, (const uint8_t *const *)shards, shards + k, shard_bytes,
                                 &error), &error);
    printf("%s: %zu + %zu shards of %zu bytes\n", profile, k, m, shard_bytes);

    /* Lose the first m shards, and decode them from what is left. */
    uint8_t *original = allocate(n + 1, shard_bytes > 0 ? shard_bytes : 1);
    memcpy(original, stripe, n * shard_bytes);
    uint8_t *present = allocate(n, 1);
    memset(present, 1, n);
    memset(present, 0, m);
    memset(stripe, 0, m * shard_bytes);
    check(fieldstone_code_decode(code, shards, present, shard_bytes, &error), &error);
    if (memcmp(stripe, original, n * shard_bytes) != 0) {
        fprintf(stderr, "decoding gave other bytes\n");
        return 1;
    }
    printf("decoded %zu lost shards: equal\n", m);

    /* Lose the last data shard alone, and read only what its repair needs. */
    size_t lost = k - 1, available_count = 0;
    size_t *available = allocate(n, sizeof *available);
    for (size_t i = 0; i < n; i++) {
        if (i != lost) {
            available[available_count++] = i;
        }
    }
    fieldstone_repair *repair;
    check(fieldstone_repair_new(code, &lost, 1, available, available_count, &repair, &error),
          &error);
    size_t read_count = fieldstone_repair_read_count(repair), read_bytes = 0;
    uint8_t **inputs = allocate(read_count, sizeof *inputs);
    for (size_t r = 0; r < read_count; r++) {
        fieldstone_read read;
        check(fieldstone_repair_read(repair, r, shard_bytes, &read, &error), &error);
        uint8_t *to = inputs[r] = allocate(read.len_bytes + 1, 1);
        for (size_t i = 0; i < read.range_count; i++) {
            fieldstone_range range;
            check(fieldstone_repair_range(repair, r, i, shard_bytes, &range, &error), &error);
            /* Here a program would read from the disk or node that has the shard. */
            memcpy(to, shards[read.shard] + range.offset_bytes, range.len_bytes);
            to += range.len_bytes;
        }
        read_bytes += read.len_bytes;
    }
    memset(shards[lost], 0, shard_bytes);
    check(fieldstone_repair_execute(repair, (const uint8_t *const *)inputs, shards + lost,
                                    shard_bytes, &error), &error);
    if (memcmp(stripe, original, n * shard_bytes) != 0) {
        fprintf(stderr, "the repair gave other bytes\n");
        return 1;
    }
    printf("repaired shard %zu from %zu bytes, where %zu whole shards are %zu bytes: equal\n",
           lost, read_bytes, k, k * shard_bytes);

    for (size_t r = 0; r < read_count; r++) {
        free(inputs[r]);
    }
    free(inputs);
    free(available);
    free(present);
    free(original);
    free(shards);
    free(stripe);
    fieldstone_repair_free(repair);
    fieldstone_code_free(code);
    return 0;
}
