/*
 * Fieldstone's block devices inside the caller's process.
 *
 * A program opens a device by a target of `fieldstone serve`:
 *
 *     ram:SIZE     memory that lives as long as the device: ram:64M. A multiple of 512 bytes
 *     file:PATH    a file or a block device
 *     DIR/VOLUME   a volume of the pool in the folder DIR
 *     ceph:POOL/IMAGE[@SNAPSHOT][?OPTIONS]   an image of a Ceph cluster (docs/ceph.md)
 *
 * The same layers as in the server are in front of the store. Opening starts the threads that the
 * options name as `cores`: one by default. One of them, the core of the device, runs the layers,
 * and reads and writes the store through io_uring. For a volume, the cores also run the nodes of
 * the pool that no `fieldstone node` process runs, and there are threads for the pool's control
 * socket: commands such as `fieldstone status DIR` work. Opening waits for as long as too few nodes
 * answer, or as long as the options say. Until the device is closed, no other process can open a
 * volume of the pool, nor can this process a second one.
 *
 * There are two kinds of calls. A program may use both:
 *
 *   - fieldstone_block_read, _write and so on wait for the answer;
 *   - fieldstone_block_aio_read, _aio_write and so on return at once. The library reports the
 *     answer to the callback. If the callback is NULL, it puts the answer into the device's
 *     completion queue. The eventfd of that queue is readable while the queue has answers.
 *     fieldstone_block_completions takes them.
 *
 * RANGES. Offsets and lengths are in bytes and need no alignment. A read or a write has at most
 * FIELDSTONE_BLOCK_REQUEST_MAX bytes. A discard or a write of zeroes has at most
 * FIELDSTONE_BLOCK_DISCARD_MAX bytes. A range that passes the end of the device is refused as a
 * whole.
 *
 * BLOCKS. A discard covers only the whole blocks of the store in its range. They read as zeroes
 * afterwards. The bytes of other blocks keep their content. So a discard of less than a block may
 * do nothing, and is a success. A block has 1 byte for `ram:` and for a file, up to 4096 bytes for
 * a block device, 4096 bytes for a volume, and 512 or 4096 bytes for a file with `direct`. No
 * function tells the size. A range that
 * begins and ends at multiples of 4096 consists of whole blocks of every store. A write of zeroes
 * covers every byte of its range, whatever the blocks are.
 *
 * ORDER. Answers come in any order. A read that is submitted after the answer to a write sees that
 * write. A flush makes the writes stable that were answered before the flush was submitted. A write
 * with FIELDSTONE_BLOCK_FUA is stable when it is answered.
 *
 * BOUNDS. The options bound the requests and bytes that are under way at a time. At the bound, an
 * aio call returns FIELDSTONE_BLOCK_FULL and has no effect: try again after an answer. The
 * completion queue has as many places as the bound on requests. A request without a callback has a
 * place from its submission until the program takes its answer. If no place is left, the aio call
 * also returns FIELDSTONE_BLOCK_FULL. Calls that wait also wait for room.
 *
 * MEMORY. A write call copies the bytes before it returns. The buffers of an aio read must live
 * until the library reports the answer. Until then the program must not use them. If a read has one
 * buffer that begins at a multiple of 4096, a file or block device may read directly into it: for
 * ranges of whole blocks that no cache has ("cache:off" switches the cache of `direct` off).
 * Otherwise the bytes are copied once. After an error the content of the buffers is undefined.
 * The program may free arrays of struct iovec when the call has returned. They have at most
 * FIELDSTONE_BLOCK_IOVECS_MAX entries. An empty buffer may be NULL.
 *
 * CALLBACKS run on the core of the device. They must return soon: meanwhile the core processes no
 * request. They may make aio calls. Calls that wait, and fieldstone_block_close, return
 * FIELDSTONE_BLOCK_IN_CALLBACK there, for every device. fieldstone_block_open works in a callback,
 * and the core stands still until it returns. A callback runs exactly once for each aio call that
 * returned FIELDSTONE_BLOCK_OK. It must return normally: neither a C++ exception nor longjmp() may
 * leave it.
 *
 * ERRORS. Functions that can fail return FIELDSTONE_BLOCK_OK or another fieldstone_block_status. If
 * `error` is not NULL, they always fill `*error`. Messages are in the caller's memory, so threads
 * cannot mix them up. An aio call that does not return FIELDSTONE_BLOCK_OK reports no answer.
 * These statuses come at once from an aio call:
 *
 *   - FIELDSTONE_BLOCK_NULL, _TOO_LONG, _FULL, _CLOSED;
 *   - FIELDSTONE_BLOCK_OUT_OF_RANGE for an unknown flag or too many iovecs;
 *   - FIELDSTONE_BLOCK_READ_ONLY;
 *   - FIELDSTONE_BLOCK_INTERNAL.
 *
 * These come as the status of an answer:
 *
 *   - FIELDSTONE_BLOCK_OUT_OF_RANGE for a range that passes the end of the device;
 *   - FIELDSTONE_BLOCK_NO_SPACE, _NOT_SUPPORTED, _FENCED, _IO;
 *   - FIELDSTONE_BLOCK_CLOSED if the device ends before it carries out the request.
 *
 * THREADS. Any number of threads may use a device at the same time. The program must close it after
 * the last call of every other thread. After fork() the child must not use the device.
 *
 * SIGNALS. The threads of the library block all signals except those for faults, such as SIGSEGV.
 * So only the program's own threads take the program's signals.
 */
#ifndef FIELDSTONE_BLOCK_H
#define FIELDSTONE_BLOCK_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Longest read or write, and longest discard or write of zeroes, in bytes. */
#define FIELDSTONE_BLOCK_REQUEST_MAX ((size_t)32 << 20)
#define FIELDSTONE_BLOCK_DISCARD_MAX ((uint64_t)2 << 30)
/* Largest number of entries in an array of struct iovec. */
#define FIELDSTONE_BLOCK_IOVECS_MAX 1024

/* Flags of writes and writes of zeroes. */
#define FIELDSTONE_BLOCK_FUA 1     /* the answer comes when the data are on stable storage */
#define FIELDSTONE_BLOCK_NO_HOLE 2 /* write of zeroes: the space stays allocated */

/* A device. */
typedef struct fieldstone_block fieldstone_block;

/* The result of a call or a request. */
enum fieldstone_block_status {
    FIELDSTONE_BLOCK_OK = 0,             /* success */
    FIELDSTONE_BLOCK_NULL = 1,           /* a pointer is NULL, but must not be */
    FIELDSTONE_BLOCK_BAD_TARGET = 2,     /* the target names no store */
    FIELDSTONE_BLOCK_BAD_LAYER = 3,      /* a layer or its option is invalid */
    FIELDSTONE_BLOCK_CANNOT_OPEN = 4,    /* the store cannot be opened; the message says why */
    FIELDSTONE_BLOCK_OUT_OF_RANGE = 5,   /* a range, number or flag that is not allowed */
    FIELDSTONE_BLOCK_TOO_LONG = 6,       /* the request is longer than the limit */
    FIELDSTONE_BLOCK_FULL = 7,           /* at a bound: try again after an answer */
    FIELDSTONE_BLOCK_CLOSED = 8,         /* the device has ended */
    FIELDSTONE_BLOCK_READ_ONLY = 9,      /* the device is read-only */
    FIELDSTONE_BLOCK_NO_SPACE = 10,      /* the store has no space left */
    FIELDSTONE_BLOCK_NOT_SUPPORTED = 11, /* the store does not do this */
    FIELDSTONE_BLOCK_FENCED = 12,        /* another writer has taken over the store */
    FIELDSTONE_BLOCK_IO = 13,            /* the store failed */
    FIELDSTONE_BLOCK_IN_CALLBACK = 14,   /* a callback called a function that waits */
    FIELDSTONE_BLOCK_INTERNAL = 15       /* a defect of the library: please report it */
};

/* A result with a message. */
typedef struct fieldstone_block_error {
    int status;        /* an enum fieldstone_block_status */
    char message[508]; /* UTF-8, ends with a zero; empty for FIELDSTONE_BLOCK_OK */
} fieldstone_block_error;

/*
 * How a device is opened. Zeroes mean the defaults. Before version 1 of the library this structure
 * may grow: compile with the header of the library that the program runs with.
 */
typedef struct fieldstone_block_options {
    int read_only;             /* refuse requests that change data */
    int direct;                /* bypass the page cache */
    const char *const *layers; /* as for `serve --layer`: "cache:capacity=64M", "cache:off" */
    size_t layer_count;        /* 64 at most */
    size_t requests;           /* under way at a time; 0 means 256; at most 65536 */
    size_t bytes;              /* of reads and writes under way at a time; 0 means 64 MiB. A longer
                                  request must be alone */
    unsigned open_timeout_ms;  /* longest wait for the store; 0 means as long as it takes. Starting
                                  and giving up may take some seconds more */
    unsigned cores;            /* threads that serve the device, as `serve --cores`; 0 means 1; at
                                  most 64. An image of a Ceph cluster uses several */
} fieldstone_block_options;

/* Receives the status of the answer to an aio call. */
typedef void (*fieldstone_block_callback)(void *arg, int status);

/* An answer in the completion queue. */
typedef struct fieldstone_block_completion {
    void *arg;  /* as passed to the aio call */
    int status; /* an enum fieldstone_block_status */
} fieldstone_block_completion;

/* The version of the library, and the name of a status ("FIELDSTONE_BLOCK_FULL"). Static texts. */
const char *fieldstone_block_version(void);
const char *fieldstone_block_status_name(int status);

/*
 * Opens a device, and waits until it serves. `options` may be NULL. On success the caller owns
 * `*device` and must close it once. On failure `*device` is NULL.
 */
int fieldstone_block_open(const char *target, const fieldstone_block_options *options,
                          fieldstone_block **device, fieldstone_block_error *error);

/*
 * Waits until every request is answered and every callback has returned, makes all writes stable,
 * and frees the device. Drops the answers in the completion queue: take them first. Frees the
 * device also when it returns an error, except FIELDSTONE_BLOCK_IN_CALLBACK. Does nothing for NULL.
 */
int fieldstone_block_close(fieldstone_block *device, fieldstone_block_error *error);

/* The present size in bytes; 0 for NULL. It may change while the device is open, for example when
 * another program resizes an image or makes a volume larger: ask again instead of keeping it. Each
 * request is checked against the size at the time when the device takes it. Works in a callback. */
uint64_t fieldstone_block_size(const fieldstone_block *device);

/* Calls that wait. */
int fieldstone_block_read(fieldstone_block *device, uint64_t offset, void *buffer, size_t len,
                          fieldstone_block_error *error);
int fieldstone_block_readv(fieldstone_block *device, uint64_t offset, const struct iovec *iov,
                           size_t iov_count, fieldstone_block_error *error);
int fieldstone_block_write(fieldstone_block *device, uint64_t offset, const void *buffer,
                           size_t len, int flags, fieldstone_block_error *error);
int fieldstone_block_writev(fieldstone_block *device, uint64_t offset, const struct iovec *iov,
                            size_t iov_count, int flags, fieldstone_block_error *error);
int fieldstone_block_flush(fieldstone_block *device, fieldstone_block_error *error);
/* The whole blocks in the range read as zeroes afterwards: see BLOCKS. */
int fieldstone_block_discard(fieldstone_block *device, uint64_t offset, uint64_t len,
                             fieldstone_block_error *error);
/* Every byte of the range reads as zero afterwards. */
int fieldstone_block_write_zeroes(fieldstone_block *device, uint64_t offset, uint64_t len,
                                  int flags, fieldstone_block_error *error);

/* The same calls without waiting. The answer brings `arg` back. `arg` may be NULL. */
int fieldstone_block_aio_read(fieldstone_block *device, uint64_t offset, void *buffer, size_t len,
                              fieldstone_block_callback callback, void *arg,
                              fieldstone_block_error *error);
int fieldstone_block_aio_readv(fieldstone_block *device, uint64_t offset, const struct iovec *iov,
                               size_t iov_count, fieldstone_block_callback callback, void *arg,
                               fieldstone_block_error *error);
int fieldstone_block_aio_write(fieldstone_block *device, uint64_t offset, const void *buffer,
                               size_t len, int flags, fieldstone_block_callback callback, void *arg,
                               fieldstone_block_error *error);
int fieldstone_block_aio_writev(fieldstone_block *device, uint64_t offset, const struct iovec *iov,
                                size_t iov_count, int flags, fieldstone_block_callback callback,
                                void *arg, fieldstone_block_error *error);
int fieldstone_block_aio_flush(fieldstone_block *device, fieldstone_block_callback callback,
                               void *arg, fieldstone_block_error *error);
int fieldstone_block_aio_discard(fieldstone_block *device, uint64_t offset, uint64_t len,
                                 fieldstone_block_callback callback, void *arg,
                                 fieldstone_block_error *error);
int fieldstone_block_aio_write_zeroes(fieldstone_block *device, uint64_t offset, uint64_t len,
                                      int flags, fieldstone_block_callback callback, void *arg,
                                      fieldstone_block_error *error);

/*
 * The eventfd of the completion queue: readable while the queue has answers. The program may only
 * poll it. The library closes it with the device. -1 for NULL.
 */
int fieldstone_block_eventfd(const fieldstone_block *device);

/*
 * Takes up to `max` answers from the completion queue, and returns their number. Waits up to
 * `timeout_ms` milliseconds for the first answer; in a callback it does not wait. Returns 0 for
 * NULL.
 */
size_t fieldstone_block_completions(fieldstone_block *device,
                                    fieldstone_block_completion *completions, size_t max,
                                    unsigned timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* FIELDSTONE_BLOCK_H */
