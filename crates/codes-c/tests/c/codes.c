/*
 * The C ABI, used from C: everything that the header promises, misuse included.
 * Prints what fails, and ends with "N checks, M failed".
 */
#include <fieldstone_codes.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHARDS = 16, GUARD = 64, ROUNDS = 40, THREADS = 4 };

static unsigned long checks, failures;

static void record(int holds, const char *what, int line)
{
    checks++;
    if (!holds) {
        failures++;
        printf("codes.c:%d: %s\n", line, what);
    }
}

#define CHECK(condition) record((condition) != 0, #condition, __LINE__)
#define OK(call) CHECK((call) == FIELDSTONE_OK)
/* The call fails with a status, which `error` repeats, and a message that has `part` in it. */
#define FAILS(expected, part, call)                        \
    do {                                                   \
        memset(&error, 0x5a, sizeof error);                \
        CHECK((call) == (expected));                       \
        CHECK(error.status == (expected));                 \
        CHECK(memchr(error.message, 0, sizeof error.message) != NULL && \
              strstr(error.message, (part)) != NULL);      \
    } while (0)
#define IS_NAMED(status) CHECK(strcmp(fieldstone_status_name(status), #status) == 0)

/* xorshift64 (Marsaglia): the same numbers everywhere. */
static uint64_t next_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static uint64_t state = 88172645463325252u;

static size_t below(size_t bound)
{
    return (size_t)(next_random(&state) % bound);
}

/* The shards of a stripe, at odd addresses, with bytes around them that must not change. */
struct stripe {
    uint8_t *memory[MAX_SHARDS];
    uint8_t *shard[MAX_SHARDS];
    size_t count, bytes;
};

static void make(struct stripe *stripe, size_t count, size_t bytes)
{
    stripe->count = count;
    stripe->bytes = bytes;
    for (size_t i = 0; i < count; i++) {
        stripe->memory[i] = malloc(bytes + 3 * GUARD);
        if (stripe->memory[i] == NULL) {
            abort();
        }
        memset(stripe->memory[i], 0xa5, bytes + 3 * GUARD);
        stripe->shard[i] = stripe->memory[i] + GUARD + below(GUARD);
        for (size_t at = 0; at < bytes; at++) {
            stripe->shard[i][at] = (uint8_t)next_random(&state);
        }
    }
}

static void drop(struct stripe *stripe)
{
    for (size_t i = 0; i < stripe->count; i++) {
        int intact = 1;
        for (uint8_t *at = stripe->memory[i]; at < stripe->shard[i]; at++) {
            intact &= *at == 0xa5;
        }
        uint8_t *end = stripe->memory[i] + stripe->bytes + 3 * GUARD;
        for (uint8_t *at = stripe->shard[i] + stripe->bytes; at < end; at++) {
            intact &= *at == 0xa5;
        }
        CHECK(intact);
        free(stripe->memory[i]);
    }
}

static int equal(const struct stripe *a, const struct stripe *b)
{
    for (size_t i = 0; i < a->count; i++) {
        if (memcmp(a->shard[i], b->shard[i], a->bytes) != 0) {
            return 0;
        }
    }
    return 1;
}

static void copy(struct stripe *to, const struct stripe *from)
{
    for (size_t i = 0; i < from->count; i++) {
        memcpy(to->shard[i], from->shard[i], from->bytes);
    }
}

static const uint8_t *const *reading(uint8_t *const *buffers)
{
    return (const uint8_t *const *)buffers;
}

static fieldstone_code *code_of(const char *profile)
{
    fieldstone_error error;
    fieldstone_code *code = NULL;
    OK(fieldstone_code_new(profile, &code, &error));
    CHECK(error.status == FIELDSTONE_OK && error.message[0] == 0);
    if (code == NULL) {
        printf("%s: %s\n", profile, error.message);
        exit(1);
    }
    return code;
}

static void names(void)
{
    fieldstone_error error;
    fieldstone_code *code;
    CHECK(strchr(fieldstone_codes_version(), '.') != NULL);
    IS_NAMED(FIELDSTONE_OK);
    IS_NAMED(FIELDSTONE_NULL);
    IS_NAMED(FIELDSTONE_BAD_PROFILE);
    IS_NAMED(FIELDSTONE_BAD_SHARD);
    IS_NAMED(FIELDSTONE_TOO_FEW_SHARDS);
    IS_NAMED(FIELDSTONE_BAD_LENGTH);
    IS_NAMED(FIELDSTONE_OVERLAP);
    IS_NAMED(FIELDSTONE_OUT_OF_RANGE);
    IS_NAMED(FIELDSTONE_INTERNAL);
    CHECK(strcmp(fieldstone_status_name(99), "unknown status") == 0);
    CHECK(strcmp(fieldstone_status_name(-1), "unknown status") == 0);

    code = code_of("clay:4+2,d=5");
    CHECK(strcmp(fieldstone_code_profile(code), "clay:4+2") == 0);
    CHECK(fieldstone_code_k(code) == 4 && fieldstone_code_m(code) == 2);
    CHECK(fieldstone_code_elements(code) == 8 && fieldstone_code_granule_bytes(code) == 8);
    fieldstone_code_free(code);
    code = code_of("cauchy-good:4+2,ps=32");
    CHECK(fieldstone_code_elements(code) == 8 && fieldstone_code_granule_bytes(code) == 256);
    fieldstone_code_free(code);

    fieldstone_code_free(NULL);
    CHECK(fieldstone_code_k(NULL) == 0 && fieldstone_code_m(NULL) == 0);
    CHECK(fieldstone_code_elements(NULL) == 0 && fieldstone_code_granule_bytes(NULL) == 0);
    CHECK(fieldstone_code_profile(NULL) == NULL);

    code = (fieldstone_code *)&error;
    FAILS(FIELDSTONE_BAD_PROFILE, "there are rs:K+M", fieldstone_code_new("raid:5", &code, &error));
    CHECK(code == NULL);
    FAILS(FIELDSTONE_BAD_PROFILE, "K + M at most 255",
          fieldstone_code_new("rs:300+2", &code, &error));
    FAILS(FIELDSTONE_BAD_PROFILE, "16777216 are the most",
          fieldstone_code_new("clay:60+60", &code, &error));
    FAILS(FIELDSTONE_BAD_PROFILE, "unknown code", fieldstone_code_new("\xff\xfe:1", &code, &error));
    FAILS(FIELDSTONE_NULL, "profile is NULL", fieldstone_code_new(NULL, &code, &error));
    FAILS(FIELDSTONE_NULL, "code is NULL", fieldstone_code_new("rs:4+2", NULL, &error));
    CHECK(fieldstone_code_new("raid:5", &code, NULL) == FIELDSTONE_BAD_PROFILE);
    /* A message that is too long ends where its room does. */
    char *name = malloc(5000);
    if (name == NULL) {
        abort();
    }
    memset(name, 'x', 4999);
    name[4999] = 0;
    FAILS(FIELDSTONE_BAD_PROFILE, "unknown code", fieldstone_code_new(name, &code, &error));
    CHECK(strlen(error.message) == sizeof error.message - 1);
    free(name);
}

/* What Ceph 16.2.15 answers to `ceph-erasure-code-tool calc-chunk-size`. */
static void chunks(void)
{
    static const struct { const char *profile; uint64_t object, chunk; } known[] = {
        {"jerasure-van:4+2", 10000, 2528}, {"cauchy-good:4+2,ps=32", 10000, 3072},
        {"rs:3+2", 10000, 3360},           {"clay:8+4", 4194304, 524288},
        {"copies:3", 77, 77},              {"rs:3+2", 0, 0}
    };
    fieldstone_error error;
    uint64_t chunk_bytes;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        fieldstone_code *code = code_of(known[i].profile);
        OK(fieldstone_code_chunk_bytes(code, known[i].object, &chunk_bytes, &error));
        CHECK(chunk_bytes == known[i].chunk);
        fieldstone_code_free(code);
    }
    fieldstone_code *code = code_of("rs:1+1");
    FAILS(FIELDSTONE_OUT_OF_RANGE, "2^64",
          fieldstone_code_chunk_bytes(code, UINT64_MAX, &chunk_bytes, &error));
    FAILS(FIELDSTONE_NULL, "chunk_bytes is NULL",
          fieldstone_code_chunk_bytes(code, 1, NULL, &error));
    FAILS(FIELDSTONE_NULL, "code is NULL",
          fieldstone_code_chunk_bytes(NULL, 1, &chunk_bytes, &error));
    fieldstone_code_free(code);
}

/* Jerasure's reed_sol_van matrix for 4 + 2 is 1 1 1 1 over 1 70 143 200. */
static void known_parities(void)
{
    static const uint8_t coefficients[4] = {1, 70, 143, 200};
    fieldstone_code *code = code_of("jerasure-van:4+2");
    for (size_t one = 0; one < 4; one++) {
        uint8_t bytes[6] = {0, 0, 0, 0, 7, 7};
        uint8_t *shards[6];
        for (size_t i = 0; i < 6; i++) {
            shards[i] = bytes + i;
        }
        bytes[one] = 1;
        OK(fieldstone_code_encode(code, reading(shards), shards + 4, 1, NULL));
        CHECK(bytes[4] == 1 && bytes[5] == coefficients[one]);
    }
    fieldstone_code_free(code);
}

/* The plan for one pattern gives the lost shards, and reads what its ranges say. Returns how much. */
static size_t repair(const fieldstone_code *code, const struct stripe *stripe, unsigned pattern)
{
    fieldstone_error error;
    size_t lost[MAX_SHARDS], available[MAX_SHARDS], lost_count = 0, available_count = 0, sum = 0;
    for (size_t i = 0; i < stripe->count; i++) {
        if (pattern >> i & 1) {
            lost[lost_count++] = i;
        } else {
            available[available_count++] = i;
        }
    }
    fieldstone_repair *plan;
    OK(fieldstone_repair_new(code, lost, lost_count, available, available_count, &plan, &error));
    struct stripe outputs;
    make(&outputs, lost_count, stripe->bytes);
    uint8_t *inputs[MAX_SHARDS];
    size_t read_count = fieldstone_repair_read_count(plan);
    CHECK(read_count >= 1 && read_count <= available_count);
    for (size_t r = 0; r < read_count; r++) {
        fieldstone_read read;
        OK(fieldstone_repair_read(plan, r, stripe->bytes, &read, &error));
        CHECK((pattern >> read.shard & 1) == 0);
        inputs[r] = malloc(read.len_bytes + 1);
        if (inputs[r] == NULL) {
            abort();
        }
        size_t filled = 0, next = 0;
        for (size_t i = 0; i < read.range_count; i++) {
            fieldstone_range range;
            OK(fieldstone_repair_range(plan, r, i, stripe->bytes, &range, &error));
            CHECK(range.offset_bytes >= next && range.len_bytes <= read.len_bytes - filled);
            next = range.offset_bytes + range.len_bytes;
            CHECK(next <= stripe->bytes);
            memcpy(inputs[r] + filled, stripe->shard[read.shard] + range.offset_bytes,
                   range.len_bytes);
            filled += range.len_bytes;
        }
        CHECK(filled == read.len_bytes);
        sum += filled;
    }
    OK(fieldstone_repair_execute(plan, reading(inputs), outputs.shard, stripe->bytes, &error));
    for (size_t i = 0; i < lost_count; i++) {
        CHECK(memcmp(outputs.shard[i], stripe->shard[lost[i]], stripe->bytes) == 0);
    }
    for (size_t r = 0; r < read_count; r++) {
        free(inputs[r]);
    }
    drop(&outputs);
    fieldstone_repair_free(plan);
    return sum;
}

/* Every loss of a stripe is decoded and repaired; the stripe is not changed by it. */
static void losses(const fieldstone_code *code, const struct stripe *stripe)
{
    fieldstone_error error;
    struct stripe work;
    make(&work, stripe->count, stripe->bytes);
    for (unsigned pattern = 0; pattern < 1u << stripe->count; pattern++) {
        uint8_t present[MAX_SHARDS];
        size_t lost = 0;
        copy(&work, stripe);
        for (size_t i = 0; i < stripe->count; i++) {
            present[i] = (pattern >> i & 1) == 0;
            if (!present[i]) {
                lost++;
                memset(work.shard[i], 0xee, stripe->bytes);
            }
        }
        int status = fieldstone_code_decode(code, work.shard, present, stripe->bytes, &error);
        if (lost <= fieldstone_code_m(code)) {
            CHECK(status == FIELDSTONE_OK);
            CHECK(equal(&work, stripe));
            if (lost > 0) {
                repair(code, stripe, pattern);
            }
        } else {
            CHECK(status == FIELDSTONE_TOO_FEW_SHARDS);
        }
    }
    drop(&work);
}

/* Random writes: updated parities are those of encoding anew. */
static void writes(const fieldstone_code *code, struct stripe *stripe, size_t unit)
{
    fieldstone_error error;
    size_t k = fieldstone_code_k(code);
    for (int round = 0; round < ROUNDS; round++) {
        size_t shard = below(k);
        size_t start = below(stripe->bytes / unit + 1) * unit;
        size_t len = below((stripe->bytes - start) / unit + 1) * unit;
        uint8_t *old = malloc(len + 1), *new = malloc(len + 1);
        if (old == NULL || new == NULL) {
            abort();
        }
        memcpy(old, stripe->shard[shard] + start, len);
        for (size_t i = 0; i < len; i++) {
            new[i] = (uint8_t)next_random(&state);
        }
        fieldstone_write change = {shard, start, len, old, new};
        OK(fieldstone_code_update(code, &change, stripe->shard + k, stripe->bytes, &error));
        memcpy(stripe->shard[shard] + start, new, len);
        int consistent = -1;
        OK(fieldstone_code_verify(code, reading(stripe->shard), stripe->bytes, &consistent, &error));
        CHECK(consistent == 1);
        free(old);
        free(new);
    }
}

/* One wrong byte is noticed, and found where there are two parities. */
static void damage(const fieldstone_code *code, struct stripe *stripe)
{
    fieldstone_error error;
    size_t wrong = 99, shard = below(stripe->count), at = below(stripe->bytes);
    int consistent = -1, verdict = -1;
    OK(fieldstone_code_locate(code, reading(stripe->shard), stripe->bytes, &verdict, &wrong, &error));
    CHECK(verdict == FIELDSTONE_CONSISTENT && wrong == 99);
    stripe->shard[shard][at] ^= 0x10;
    OK(fieldstone_code_verify(code, reading(stripe->shard), stripe->bytes, &consistent, &error));
    CHECK(consistent == 0);
    OK(fieldstone_code_locate(code, reading(stripe->shard), stripe->bytes, &verdict, &wrong, &error));
    if (fieldstone_code_m(code) >= 2) {
        CHECK(verdict == FIELDSTONE_WRONG && wrong == shard);
    } else {
        CHECK(verdict == FIELDSTONE_UNKNOWN && wrong == 99);
    }
    stripe->shard[shard][at] ^= 0x10;
}

static void every_code(void)
{
    /* The unit of updates is 1 but for codes over words. */
    static const struct { const char *profile; size_t unit; } codes[] = {
        {"rs:4+2", 1},  {"rs:5+1", 1},    {"rs-van:4+3", 1},            {"jerasure-van:4+2", 1},
        {"copies:3", 1}, {"clay:4+2", 1}, {"jerasure-van:3+2,w=16", 2}, {"jerasure-r6:4+2,w=32", 4},
        {"zigzag:4+2", 1}, {"zigzag:4+3", 1}, {"cauchy-good:4+2,ps=8", 1}
    };
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        fieldstone_error error;
        fieldstone_code *code = code_of(codes[i].profile);
        size_t k = fieldstone_code_k(code), m = fieldstone_code_m(code);
        size_t granule_bytes = fieldstone_code_granule_bytes(code);
        /* No bytes at all, one granule, and so many that vectors and tails are both needed. */
        size_t lengths[3] = {0, granule_bytes, (700 / granule_bytes + 3) * granule_bytes};
        for (size_t l = 0; l < 3; l++) {
            struct stripe stripe;
            make(&stripe, k + m, lengths[l]);
            OK(fieldstone_code_encode(code, reading(stripe.shard), stripe.shard + k, lengths[l],
                                      &error));
            losses(code, &stripe);
            writes(code, &stripe, codes[i].unit);
            if (lengths[l] > 0) {
                damage(code, &stripe);
            }
            drop(&stripe);
        }
        fieldstone_code_free(code);
    }
}

/* Regenerating codes read less: half of each of 5 survivors instead of 4 whole ones. */
static void small_reads(void)
{
    static const char *const profiles[3] = {"zigzag:4+2", "clay:4+2", "rs:4+2"};
    for (size_t i = 0; i < 3; i++) {
        fieldstone_code *code = code_of(profiles[i]);
        struct stripe stripe;
        make(&stripe, 6, 800);
        OK(fieldstone_code_encode(code, reading(stripe.shard), stripe.shard + 4, 800, NULL));
        for (unsigned shard = 0; shard < 6; shard++) {
            size_t expected = i == 2 || (i == 0 && shard >= 4) ? 3200 : 2000;
            CHECK(repair(code, &stripe, 1u << shard) == expected);
        }
        drop(&stripe);
        fieldstone_code_free(code);
    }
}

static void misuse(void)
{
    fieldstone_error error;
    fieldstone_code *code = code_of("zigzag:4+2");
    struct stripe stripe, before;
    make(&stripe, 6, 80);
    make(&before, 6, 80);
    copy(&before, &stripe);
    uint8_t *shards[6];
    memcpy(shards, stripe.shard, sizeof shards);

    FAILS(FIELDSTONE_NULL, "code is NULL",
          fieldstone_code_encode(NULL, reading(shards), shards + 4, 80, &error));
    FAILS(FIELDSTONE_NULL, "data is NULL",
          fieldstone_code_encode(code, NULL, shards + 4, 80, &error));
    FAILS(FIELDSTONE_NULL, "parity is NULL",
          fieldstone_code_encode(code, reading(shards), NULL, 80, &error));
    FAILS(FIELDSTONE_BAD_LENGTH, "multiples of 8 bytes, and 81",
          fieldstone_code_encode(code, reading(shards), shards + 4, 81, &error));
    FAILS(FIELDSTONE_BAD_LENGTH, "longer than the address space",
          fieldstone_code_encode(code, reading(shards), shards + 4, SIZE_MAX - 7, &error));
    shards[2] = NULL;
    FAILS(FIELDSTONE_NULL, "data[2] is NULL",
          fieldstone_code_encode(code, reading(shards), shards + 4, 80, &error));
    shards[2] = stripe.shard[2];
    shards[5] = shards[1] + 79;
    FAILS(FIELDSTONE_OVERLAP, "parity[1] overlaps data[1]",
          fieldstone_code_encode(code, reading(shards), shards + 4, 80, &error));
    shards[5] = shards[4];
    FAILS(FIELDSTONE_OVERLAP, "parity[1] overlaps parity[0]",
          fieldstone_code_encode(code, reading(shards), shards + 4, 80, &error));
    shards[5] = stripe.shard[5];
    CHECK(equal(&stripe, &before));
    /* What is only read may be the same memory. */
    shards[1] = shards[0];
    OK(fieldstone_code_encode(code, reading(shards), shards + 4, 80, &error));
    shards[1] = stripe.shard[1];
    OK(fieldstone_code_encode(code, reading(shards), shards + 4, 80, &error));
    copy(&before, &stripe);

    uint8_t present[6] = {1, 1, 0, 1, 1, 0};
    FAILS(FIELDSTONE_NULL, "shards is NULL",
          fieldstone_code_decode(code, NULL, present, 80, &error));
    FAILS(FIELDSTONE_NULL, "present is NULL",
          fieldstone_code_decode(code, shards, NULL, 80, &error));
    FAILS(FIELDSTONE_BAD_LENGTH, "multiples of 8",
          fieldstone_code_decode(code, shards, present, 79, &error));
    shards[0] = NULL;
    FAILS(FIELDSTONE_NULL, "shards[0] is NULL",
          fieldstone_code_decode(code, shards, present, 80, &error));
    shards[0] = stripe.shard[0];
    shards[2] = shards[3] - 1;
    FAILS(FIELDSTONE_OVERLAP, "shards[2] overlaps shards[3]",
          fieldstone_code_decode(code, shards, present, 80, &error));
    shards[2] = stripe.shard[2];
    present[0] = 0;
    FAILS(FIELDSTONE_TOO_FEW_SHARDS, "needs 4 shards to repair, but only 3",
          fieldstone_code_decode(code, shards, present, 80, &error));
    CHECK(equal(&stripe, &before));
    /* A missing shard without a buffer is not written, and the others still are. */
    present[0] = 1;
    memset(shards[2], 0, 80);
    shards[5] = NULL;
    OK(fieldstone_code_decode(code, shards, present, 80, &error));
    shards[5] = stripe.shard[5];
    CHECK(equal(&stripe, &before));

    uint8_t bytes[8] = {0};
    fieldstone_write change = {0, 73, 8, bytes, bytes};
    FAILS(FIELDSTONE_OUT_OF_RANGE, "8 bytes at 73 are not inside",
          fieldstone_code_update(code, &change, shards + 4, 80, &error));
    change.offset_bytes = SIZE_MAX;
    FAILS(FIELDSTONE_OUT_OF_RANGE, "not inside",
          fieldstone_code_update(code, &change, shards + 4, 80, &error));
    change.offset_bytes = 0;
    change.shard = 4;
    FAILS(FIELDSTONE_BAD_SHARD, "no data shard",
          fieldstone_code_update(code, &change, shards + 4, 80, &error));
    change.shard = 0;
    change.new_bytes = NULL;
    FAILS(FIELDSTONE_NULL, "new_bytes is NULL",
          fieldstone_code_update(code, &change, shards + 4, 80, &error));
    change.new_bytes = shards[4];
    FAILS(FIELDSTONE_OVERLAP, "parity[0] overlaps new_bytes",
          fieldstone_code_update(code, &change, shards + 4, 80, &error));
    FAILS(FIELDSTONE_NULL, "change is NULL",
          fieldstone_code_update(code, NULL, shards + 4, 80, &error));
    FAILS(FIELDSTONE_NULL, "consistent is NULL",
          fieldstone_code_verify(code, reading(shards), 80, NULL, &error));
    int verdict;
    shards[3][0] ^= 1;
    FAILS(FIELDSTONE_NULL, "wrong is NULL",
          fieldstone_code_locate(code, reading(shards), 80, &verdict, NULL, &error));
    shards[3][0] ^= 1;
    CHECK(equal(&stripe, &before));

    fieldstone_repair *plan;
    size_t lost[2] = {1, 1}, others[5] = {0, 2, 3, 4, 5};
    FAILS(FIELDSTONE_BAD_SHARD, "no shard to repair",
          fieldstone_repair_new(code, NULL, 0, others, 5, &plan, &error));
    CHECK(plan == NULL);
    FAILS(FIELDSTONE_NULL, "lost is NULL",
          fieldstone_repair_new(code, NULL, 1, others, 5, &plan, &error));
    FAILS(FIELDSTONE_BAD_SHARD, "named twice as lost",
          fieldstone_repair_new(code, lost, 2, others, 5, &plan, &error));
    FAILS(FIELDSTONE_BAD_SHARD, "both as lost and as available",
          fieldstone_repair_new(code, others, 1, others, 5, &plan, &error));
    FAILS(FIELDSTONE_TOO_FEW_SHARDS, "only 3 are available",
          fieldstone_repair_new(code, lost, 1, others, 3, &plan, &error));
    FAILS(FIELDSTONE_OUT_OF_RANGE, "cannot have",
          fieldstone_repair_new(code, lost, SIZE_MAX / 2, others, 5, &plan, &error));
    lost[0] = 6;
    FAILS(FIELDSTONE_BAD_SHARD, "does not exist",
          fieldstone_repair_new(code, lost, 1, others, 5, &plan, &error));
    FAILS(FIELDSTONE_NULL, "repair is NULL",
          fieldstone_repair_new(code, lost, 1, others, 5, NULL, &error));

    lost[0] = 1;
    OK(fieldstone_repair_new(code, lost, 1, others, 5, &plan, &error));
    /* A plan outlives its code. */
    fieldstone_code_free(code);
    fieldstone_read read;
    fieldstone_range range;
    CHECK(fieldstone_repair_read_count(plan) == 5);
    FAILS(FIELDSTONE_OUT_OF_RANGE, "no read 5",
          fieldstone_repair_read(plan, 5, 80, &read, &error));
    FAILS(FIELDSTONE_BAD_LENGTH, "multiples of 8",
          fieldstone_repair_read(plan, 0, 84, &read, &error));
    OK(fieldstone_repair_read(plan, 0, 80, &read, &error));
    FAILS(FIELDSTONE_OUT_OF_RANGE, "there is no range",
          fieldstone_repair_range(plan, 0, read.range_count, 80, &range, &error));
    FAILS(FIELDSTONE_NULL, "result is NULL",
          fieldstone_repair_range(plan, 0, 0, 80, NULL, &error));
    OK(fieldstone_repair_range(plan, 0, 0, SIZE_MAX - 7, &range, &error));
    FAILS(FIELDSTONE_NULL, "inputs is NULL",
          fieldstone_repair_execute(plan, NULL, shards, 80, &error));
    FAILS(FIELDSTONE_OVERLAP, "outputs[0] overlaps inputs[0]",
          fieldstone_repair_execute(plan, reading(shards), shards, 80, &error));
    FAILS(FIELDSTONE_BAD_LENGTH, "multiples of 8",
          fieldstone_repair_execute(plan, reading(shards), shards + 5, 84, &error));
    FAILS(FIELDSTONE_NULL, "repair is NULL",
          fieldstone_repair_execute(NULL, reading(shards), shards + 5, 80, &error));
    fieldstone_repair_free(plan);
    fieldstone_repair_free(NULL);
    CHECK(fieldstone_repair_read_count(NULL) == 0);
    drop(&stripe);
    drop(&before);
}

/* What one thread does with the shared code; its checks are counted in the end. */
struct work {
    const fieldstone_code *code;
    uint64_t seed;
    int failed;
};

static void *run(void *argument)
{
    struct work *work = argument;
    enum { BYTES = 512 };
    uint8_t memory[12][BYTES];
    uint8_t *shards[12];
    for (size_t i = 0; i < 12; i++) {
        shards[i] = memory[i];
    }
    for (int round = 0; round < 200; round++) {
        fieldstone_error error;
        uint8_t present[12], lost[4][BYTES];
        char expected[32];
        memset(present, 1, sizeof present);
        for (size_t i = 0; i < sizeof memory / sizeof(uint64_t); i++) {
            uint64_t number = next_random(&work->seed);
            memcpy(memory[0] + 8 * i, &number, sizeof number);
        }
        work->failed |= fieldstone_code_encode(work->code, reading(shards), shards + 8, BYTES,
                                               &error);
        for (size_t i = 0; i < 4; i++) {
            size_t shard = 3 * i + (size_t)(next_random(&work->seed) % 3);
            present[shard] = 0;
            memcpy(lost[i], memory[shard], BYTES);
            memset(memory[shard], 0, BYTES);
        }
        work->failed |= fieldstone_code_decode(work->code, shards, present, BYTES, &error);
        for (size_t i = 0, at = 0; i < 12; i++) {
            if (!present[i]) {
                work->failed |= memcmp(lost[at++], memory[i], BYTES) != 0;
            }
        }
        /* The message is that of this thread. */
        size_t bytes = 8 * (size_t)(next_random(&work->seed) % (BYTES / 8)) + 3;
        sprintf(expected, "and %lu is none", (unsigned long)bytes);
        int status = fieldstone_code_decode(work->code, shards, present, bytes, &error);
        work->failed |= status != FIELDSTONE_BAD_LENGTH;
        work->failed |= strstr(error.message, expected) == NULL;
    }
    return NULL;
}

static void threads(void)
{
    /* Many patterns, so that threads make plans for the shared cache at the same time. */
    fieldstone_code *code = code_of("zigzag:8+4,n=4");
    pthread_t ids[THREADS];
    struct work work[THREADS];
    for (size_t i = 0; i < THREADS; i++) {
        work[i].code = code;
        work[i].seed = 0x9e3779b97f4a7c15u * (i + 1);
        work[i].failed = 0;
        CHECK(pthread_create(&ids[i], NULL, run, &work[i]) == 0);
    }
    for (size_t i = 0; i < THREADS; i++) {
        CHECK(pthread_join(ids[i], NULL) == 0);
        CHECK(work[i].failed == 0);
    }
    fieldstone_code_free(code);
}

int main(void)
{
    names();
    chunks();
    known_parities();
    every_code();
    small_reads();
    misuse();
    threads();
    printf("%lu checks, %lu failed\n", checks, failures);
    return failures == 0 ? 0 : 1;
}
