/*
 * Fieldstone's erasure codes: Reed-Solomon as ISA-L and Jerasure make it, Zigzag, Clay and copies.
 *
 * A code has k data shards and m parity shards of one length, numbered 0 .. k-1 and k .. k+m-1. Any
 * k of them give back all others. `fieldstone_code_new("rs:4+2", ...)` makes one; the names are
 *
 *     rs:K+M                        ISA-L's Cauchy matrix             Ceph: isa, cauchy
 *     rs-van:K+M                    ISA-L's Vandermonde matrix        Ceph: isa, reed_sol_van
 *     jerasure-van:K+M[,w=W]        Jerasure's reed_sol_van           Ceph: jerasure
 *     jerasure-r6:K+2[,w=W]         Jerasure's reed_sol_r6_op         Ceph: jerasure
 *     cauchy-orig:K+M[,w=W][,ps=P]  Jerasure's cauchy_orig            Ceph: jerasure
 *     cauchy-good:K+M[,w=W][,ps=P]  Jerasure's cauchy_good            Ceph: jerasure
 *     zigzag:K+M[,n=N]              repairs read less of data shards
 *     clay:K+M[,d=D][,mds=S]        repairs read less of every shard  Ceph: clay
 *     copies:N                      N equal shards
 *
 * Two ways to get lost shards back:
 *   - fieldstone_code_decode, with whole shards in memory: no copies, no plan;
 *   - fieldstone_repair_new, where reading is what costs: it says which ranges of which shards to
 *     read, and fieldstone_repair_execute makes the lost shards of just those.
 *
 * ERRORS. Functions that can fail return FIELDSTONE_OK or another fieldstone_status, and fill
 * `*error`, if that is not NULL, in any case. Messages live in the caller's memory, so threads
 * cannot mix them up. On failure no buffer has been written, unless it is FIELDSTONE_INTERNAL.
 *
 * MEMORY. The library keeps no pointer to the caller's memory after a call, except that codes and
 * plans are its own until they are freed. Buffers may have any alignment. What is written must not
 * overlap anything else in the call (that is checked); what is only read may. An empty buffer
 * may be NULL. Arrays are those of C, aligned as such.
 *
 * THREADS. Codes and plans do not change. Any number of threads may use one at the same time, with
 * buffers that no other thread writes meanwhile; freeing it must come after the last use.
 *
 * LENGTHS are in bytes. Shards have multiples of fieldstone_code_granule_bytes(), zero included.
 */
#ifndef FIELDSTONE_CODES_H
#define FIELDSTONE_CODES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A code. */
typedef struct fieldstone_code fieldstone_code;

/* A plan for the repair of some shards. It lives on when its code is freed. */
typedef struct fieldstone_repair fieldstone_repair;

/* What a call came to. */
enum fieldstone_status {
    FIELDSTONE_OK = 0,             /* done */
    FIELDSTONE_NULL = 1,           /* a pointer is NULL that must not be */
    FIELDSTONE_BAD_PROFILE = 2,    /* the text names no code; the message says what there is */
    FIELDSTONE_BAD_SHARD = 3,      /* a shard does not exist, is named twice, or plays two parts */
    FIELDSTONE_TOO_FEW_SHARDS = 4, /* the data is gone until more shards come back */
    FIELDSTONE_BAD_LENGTH = 5,     /* lengths that do not fit the code or each other */
    FIELDSTONE_OVERLAP = 6,        /* a buffer that is written overlaps another one */
    FIELDSTONE_OUT_OF_RANGE = 7,   /* a number or range beyond what there is */
    FIELDSTONE_INTERNAL = 8        /* a defect of the library: please report it */
};

/* A result in detail. */
typedef struct fieldstone_error {
    int status;        /* an enum fieldstone_status */
    char message[508]; /* UTF-8, ends with a zero; empty for FIELDSTONE_OK */
} fieldstone_error;

/* The version of the library, and the name of a status ("FIELDSTONE_OVERLAP"). Static texts. */
const char *fieldstone_codes_version(void);
const char *fieldstone_status_name(int status);

/*
 * Makes a code from its name. On success `*code` is the caller's, to be freed once; on failure it
 * is NULL. A code keeps the plans that it made last: make it once and use it often.
 */
int fieldstone_code_new(const char *profile, fieldstone_code **code, fieldstone_error *error);

/* Frees a code. NULL is ignored. */
void fieldstone_code_free(fieldstone_code *code);

/* The name of the code, as short as it can be written. Lives as long as the code. NULL for NULL. */
const char *fieldstone_code_profile(const fieldstone_code *code);

/* Numbers of data shards, of parity shards, and of elements of a shard, the unit in which plans
 * read. 0 for NULL. */
size_t fieldstone_code_k(const fieldstone_code *code);
size_t fieldstone_code_m(const fieldstone_code *code);
uint32_t fieldstone_code_elements(const fieldstone_code *code);

/* Lengths of shards are multiples of this. 0 for NULL. */
size_t fieldstone_code_granule_bytes(const fieldstone_code *code);

/*
 * The length of each shard of an object of `object_bytes` bytes, by the rule of Ceph's plugin for
 * the code (default alignment). Data shard i is bytes i * chunk .. (i+1) * chunk of the object,
 * filled up with zeros. FIELDSTONE_OUT_OF_RANGE where it does not fit 64 bits.
 */
int fieldstone_code_chunk_bytes(const fieldstone_code *code, uint64_t object_bytes,
                                uint64_t *chunk_bytes, fieldstone_error *error);

/* Computes the m parities of the k data shards. */
int fieldstone_code_encode(const fieldstone_code *code, const uint8_t *const *data,
                           uint8_t *const *parity, size_t shard_bytes, fieldstone_error *error);

/*
 * Makes missing shards, data or parity, of any k others. `shards` and `present` have k + m entries.
 * Where present[i] is not 0, shards[i] is read; where it is 0, shards[i] is written, unless it is
 * NULL: then that shard is not made. FIELDSTONE_TOO_FEW_SHARDS with fewer than k present.
 */
int fieldstone_code_decode(const fieldstone_code *code, uint8_t *const *shards,
                           const uint8_t *present, size_t shard_bytes, fieldstone_error *error);

/* A write to a data shard: `len_bytes` bytes at `offset_bytes` were old_bytes and are new_bytes. */
typedef struct fieldstone_write {
    size_t shard;
    size_t offset_bytes;
    size_t len_bytes;
    const uint8_t *old_bytes;
    const uint8_t *new_bytes;
} fieldstone_write;

/*
 * Brings the m parities up to date with a write, without the other data shards. Codes over words
 * of 16 and 32 bits take whole words only (FIELDSTONE_BAD_LENGTH).
 */
int fieldstone_code_update(const fieldstone_code *code, const fieldstone_write *change,
                           uint8_t *const *parity, size_t shard_bytes, fieldstone_error *error);

/* Sets `*consistent` to 1 if the parities of the k + m shards are those of the data, else to 0. */
int fieldstone_code_verify(const fieldstone_code *code, const uint8_t *const *shards,
                           size_t shard_bytes, int *consistent, fieldstone_error *error);

/* What is wrong with a stripe. */
enum fieldstone_verdict {
    FIELDSTONE_CONSISTENT = 0, /* nothing */
    FIELDSTONE_WRONG = 1,      /* exactly one shard */
    FIELDSTONE_UNKNOWN = 2     /* no single shard, or there are too few parities to tell */
};

/*
 * Finds one wrong shard of the k + m without checksums, which takes two parities or more. Sets
 * `*verdict`, and `*wrong` with FIELDSTONE_WRONG only. Several wrong shards may look like one.
 */
int fieldstone_code_locate(const fieldstone_code *code, const uint8_t *const *shards,
                           size_t shard_bytes, int *verdict, size_t *wrong,
                           fieldstone_error *error);

/*
 * Plans the repair of the shards `lost`, reading as little as the code can of some of those
 * `available`, which are in order of preference. On success `*repair` is the caller's, to be freed
 * once; on failure it is NULL.
 */
int fieldstone_repair_new(const fieldstone_code *code, const size_t *lost, size_t lost_count,
                          const size_t *available, size_t available_count,
                          fieldstone_repair **repair, fieldstone_error *error);

/* Frees a plan. NULL is ignored. */
void fieldstone_repair_free(fieldstone_repair *repair);

/* What a plan reads of one shard: so many ranges, and so many bytes in all of them. */
typedef struct fieldstone_read {
    size_t shard;
    size_t range_count;
    size_t len_bytes;
} fieldstone_read;

/* Bytes of a shard. */
typedef struct fieldstone_range {
    size_t offset_bytes;
    size_t len_bytes;
} fieldstone_range;

/* How many shards a plan reads: reads are 0 .. count - 1. 0 for NULL. */
size_t fieldstone_repair_read_count(const fieldstone_repair *repair);

/* What read number `read` is, and its range number `range`, in shards of `shard_bytes` bytes. */
int fieldstone_repair_read(const fieldstone_repair *repair, size_t read, size_t shard_bytes,
                           fieldstone_read *result, fieldstone_error *error);
int fieldstone_repair_range(const fieldstone_repair *repair, size_t read, size_t range,
                            size_t shard_bytes, fieldstone_range *result,
                            fieldstone_error *error);

/*
 * Makes the lost shards of what was read. inputs[i] is the content of the ranges of read i, one
 * after the other; outputs[i] becomes the i-th of the lost shards, in the order in which they were
 * named. Codes of one element per shard also repair any part of shards: `shard_bytes` is its length.
 */
int fieldstone_repair_execute(const fieldstone_repair *repair, const uint8_t *const *inputs,
                              uint8_t *const *outputs, size_t shard_bytes,
                              fieldstone_error *error);

#ifdef __cplusplus
}
#endif

#endif
