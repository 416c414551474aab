/*
 * Fieldstone's erasure codes: Reed-Solomon as ISA-L and Jerasure make it, Zigzag, Clay and copies.
 *
 * A code has k data shards and m parity shards of one length, numbered 0 .. k-1 and k .. k+m-1. Any
 * k shards determine all others. `fieldstone_code_new("rs:4+2", ...)` makes a code; the names are
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
 * There are two ways to recompute lost shards:
 *   - fieldstone_code_decode, with whole shards in memory: no copies, no plan;
 *   - fieldstone_repair_new, if reading is expensive: the plan says which ranges of which shards to
 *     read, and fieldstone_repair_execute computes the lost shards from these ranges alone.
 *
 * ERRORS. Functions that can fail return FIELDSTONE_OK or another fieldstone_status. They always
 * fill `*error`, if `error` is not NULL. Messages are in the caller's memory, so no thread gets
 * another thread's message. After a failure no buffer has been written, except for
 * FIELDSTONE_INTERNAL.
 *
 * MEMORY. The library keeps no pointer to the caller's memory after a call. Codes and plans are the
 * library's memory until they are freed. Buffers may have any alignment. A buffer that a call
 * writes must not overlap any other buffer of the call (the call checks this); buffers that it only
 * reads may overlap. An empty buffer may be NULL. Arrays have the alignment of C.
 *
 * THREADS. Codes and plans do not change. Any number of threads may use one at the same time, with
 * buffers that no other thread writes meanwhile. It must be freed after its last use.
 *
 * LENGTHS are in bytes. Lengths of shards are multiples of fieldstone_code_granule_bytes(), zero
 * included.
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

/* The result of a call. */
enum fieldstone_status {
    FIELDSTONE_OK = 0,             /* the call succeeded */
    FIELDSTONE_NULL = 1,           /* a required pointer is NULL */
    FIELDSTONE_BAD_PROFILE = 2,    /* not the name of a code; the message lists the names */
    FIELDSTONE_BAD_SHARD = 3,      /* a shard does not exist, or is named twice, or in both lists */
    FIELDSTONE_TOO_FEW_SHARDS = 4, /* the data is lost until more shards come back */
    FIELDSTONE_BAD_LENGTH = 5,     /* lengths do not fit the code or each other */
    FIELDSTONE_OVERLAP = 6,        /* a written buffer overlaps another one */
    FIELDSTONE_OUT_OF_RANGE = 7,   /* a number or range is out of bounds */
    FIELDSTONE_INTERNAL = 8        /* a defect of the library: please report it */
};

/* A result in detail. */
typedef struct fieldstone_error {
    int status;        /* an enum fieldstone_status */
    char message[508]; /* UTF-8, ends with a zero; empty for FIELDSTONE_OK */
} fieldstone_error;

/* The library's version, and the name of a status ("FIELDSTONE_OVERLAP"). Both are static texts. */
const char *fieldstone_codes_version(void);
const char *fieldstone_status_name(int status);

/*
 * Makes a code from its name. On success the caller owns `*code` and must free it once; on failure
 * `*code` is NULL. A code keeps the plans that it used last: make it once and use it often.
 */
int fieldstone_code_new(const char *profile, fieldstone_code **code, fieldstone_error *error);

/* Frees a code. NULL is ignored. */
void fieldstone_code_free(fieldstone_code *code);

/* The code's name in its shortest form. It lives as long as the code. NULL for NULL. */
const char *fieldstone_code_profile(const fieldstone_code *code);

/* Numbers of data shards, of parity shards, and of elements of a shard. Plans read whole elements.
 * 0 for NULL. */
size_t fieldstone_code_k(const fieldstone_code *code);
size_t fieldstone_code_m(const fieldstone_code *code);
uint32_t fieldstone_code_elements(const fieldstone_code *code);

/* Lengths of shards are multiples of this number. 0 for NULL. */
size_t fieldstone_code_granule_bytes(const fieldstone_code *code);

/*
 * The length of each shard of an object of `object_bytes` bytes, by the rule of Ceph's plugin for
 * the code (default alignment). Data shard i is bytes i * chunk .. (i+1) * chunk of the object,
 * filled up with zeros. FIELDSTONE_OUT_OF_RANGE if the length does not fit into 64 bits.
 */
int fieldstone_code_chunk_bytes(const fieldstone_code *code, uint64_t object_bytes,
                                uint64_t *chunk_bytes, fieldstone_error *error);

/* Computes the m parities of the k data shards. */
int fieldstone_code_encode(const fieldstone_code *code, const uint8_t *const *data,
                           uint8_t *const *parity, size_t shard_bytes, fieldstone_error *error);

/*
 * Recomputes missing shards, data or parity, from any k others. `shards` and `present` have k + m
 * entries. If present[i] is not 0, the call may read shards[i]. If it is 0, the call writes
 * shards[i], unless shards[i] is NULL: then the call does not compute this shard.
 * FIELDSTONE_TOO_FEW_SHARDS if fewer than k shards are present.
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
 * Updates the m parities for a write. The call does not need the other data shards. Codes over
 * words of 16 and 32 bits take only whole words (else FIELDSTONE_BAD_LENGTH).
 */
int fieldstone_code_update(const fieldstone_code *code, const fieldstone_write *change,
                           uint8_t *const *parity, size_t shard_bytes, fieldstone_error *error);

/* Sets `*consistent` to 1 if the parities of the k + m shards belong to the data, else to 0. */
int fieldstone_code_verify(const fieldstone_code *code, const uint8_t *const *shards,
                           size_t shard_bytes, int *consistent, fieldstone_error *error);

/* The wrong shards of a stripe. */
enum fieldstone_verdict {
    FIELDSTONE_CONSISTENT = 0, /* none */
    FIELDSTONE_WRONG = 1,      /* exactly one shard */
    FIELDSTONE_UNKNOWN = 2     /* no single shard, or too few parities to decide */
};

/*
 * Finds one wrong shard of the k + m without checksums. The code needs at least two parities. Sets
 * `*verdict`, and sets `*wrong` only for FIELDSTONE_WRONG. Several wrong shards may look like one.
 */
int fieldstone_code_locate(const fieldstone_code *code, const uint8_t *const *shards,
                           size_t shard_bytes, int *verdict, size_t *wrong,
                           fieldstone_error *error);

/*
 * Plans the repair of the shards `lost` from some of the shards `available`, which are in order of
 * preference. The plan reads as little as the code allows. On success the caller owns `*repair` and
 * must free it once; on failure `*repair` is NULL.
 */
int fieldstone_repair_new(const fieldstone_code *code, const size_t *lost, size_t lost_count,
                          const size_t *available, size_t available_count,
                          fieldstone_repair **repair, fieldstone_error *error);

/* Frees a plan. NULL is ignored. */
void fieldstone_repair_free(fieldstone_repair *repair);

/* The reads of a plan from one shard: the number of ranges, and their bytes together. */
typedef struct fieldstone_read {
    size_t shard;
    size_t range_count;
    size_t len_bytes;
} fieldstone_read;

/* A range of a shard. */
typedef struct fieldstone_range {
    size_t offset_bytes;
    size_t len_bytes;
} fieldstone_range;

/* Number of shards that a plan reads: reads are 0 .. count - 1. 0 for NULL. */
size_t fieldstone_repair_read_count(const fieldstone_repair *repair);

/* Read number `read`, and its range number `range`, for shards of `shard_bytes` bytes. */
int fieldstone_repair_read(const fieldstone_repair *repair, size_t read, size_t shard_bytes,
                           fieldstone_read *result, fieldstone_error *error);
int fieldstone_repair_range(const fieldstone_repair *repair, size_t read, size_t range,
                            size_t shard_bytes, fieldstone_range *result,
                            fieldstone_error *error);

/*
 * Computes the lost shards from the reads. inputs[i] is the content of the ranges of read i, one
 * after the other. outputs[i] becomes the i-th lost shard, in the order of `lost`. Codes with one
 * element per shard can also repair a part of the shards: then `shard_bytes` is the part's length.
 */
int fieldstone_repair_execute(const fieldstone_repair *repair, const uint8_t *const *inputs,
                              uint8_t *const *outputs, size_t shard_bytes,
                              fieldstone_error *error);

#ifdef __cplusplus
}
#endif

#endif
