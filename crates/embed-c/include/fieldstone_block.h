/*
 * Fieldstone's block devices inside the caller's process.
 *
 * A device is opened by the target that `fieldstone serve` takes:
 *
 *     ram:SIZE     memory, which goes with the device: ram:64M
 *     file:PATH    a file or a block device
 *
 * and goes through the same layers. Opening it starts one thread, the core, which does all of its
 * input and output through io_uring.
 *
 * Two ways to ask, which may be mixed:
 *
 *   - fieldstone_block_read, _write and so on wait for the answer;
 *   - fieldstone_block_aio_read, _aio_write and so on return at once. The answer comes to a
 *     callback, or, where the callback is NULL, into the device's completion queue. Its eventfd is
 *     readable while answers wait, and fieldstone_block_completions takes them.
 *
 * RANGES. Offsets and lengths are in bytes and need no alignment. A read or a write has at most
 * FIELDSTONE_BLOCK_REQUEST_MAX bytes, a discard or a write of zeroes at most
 * FIELDSTONE_BLOCK_DISCARD_MAX. A range that passes the end is refused as a whole.
 *
 * ORDER. Answers come in any order. A read that is submitted after a write was answered sees the
 * write. A flush makes stable what was answered before the flush was submitted. A write with
 * FIELDSTONE_BLOCK_FUA is stable when it is answered.
 *
 * BOUNDS. A device takes as many requests and bytes at a time as its options say. When they are
 * under way, an aio call returns FIELDSTONE_BLOCK_FULL and nothing has happened: try again after an
 * answer has come. The completion queue has a place for as many requests, whether they are under
 * way or answered and not yet taken; without a place, requests that are to come there are refused
 * in the same way. Calls that wait also wait for room.
 *
 * MEMORY. What is written is copied before the call returns. What is read is copied once, on the
 * core, before the answer is told: the buffers of an aio read must live, and no one may use them,
 * until then. Arrays of struct iovec may go when the call returns; they have at most
 * FIELDSTONE_BLOCK_IOVECS_MAX entries. A buffer of no bytes may be NULL.
 *
 * CALLBACKS run on the core. They must return soon: while one runs, nothing else moves. They may
 * make aio calls. Calls that wait, and fieldstone_block_close, return FIELDSTONE_BLOCK_IN_CALLBACK
 * there. A callback runs exactly once for each aio call that returned FIELDSTONE_BLOCK_OK.
 *
 * ERRORS. Functions that can fail return FIELDSTONE_BLOCK_OK or another fieldstone_block_status, and
 * fill `*error`, if that is not NULL, in any case. Messages live in the caller's memory, so threads
 * cannot mix them up. An aio call that returns anything but FIELDSTONE_BLOCK_OK tells no answer.
 *
 * THREADS. Any number of threads may use a device at the same time. Closing it must come after the
 * last call of every other thread. After fork() the child must not use the device.
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
/* Entries of an array of struct iovec. */
#define FIELDSTONE_BLOCK_IOVECS_MAX 1024

/* Flags of writes and writes of zeroes. */
#define FIELDSTONE_BLOCK_FUA 1     /* answered when it is on stable storage */
#define FIELDSTONE_BLOCK_NO_HOLE 2 /* write of zeroes: the space stays allocated */

/* A device. */
typedef struct fieldstone_block fieldstone_block;

/* What a call or a request came to. */
enum fieldstone_block_status {
    FIELDSTONE_BLOCK_OK = 0,             /* done */
    FIELDSTONE_BLOCK_NULL = 1,           /* a pointer is NULL that must not be */
    FIELDSTONE_BLOCK_BAD_TARGET = 2,     /* the text names no store */
    FIELDSTONE_BLOCK_BAD_LAYER = 3,      /* no such layer or option */
    FIELDSTONE_BLOCK_CANNOT_OPEN = 4,    /* the store does not open; the message says why */
    FIELDSTONE_BLOCK_OUT_OF_RANGE = 5,   /* the range passes the end; or too many, or unknown flags */
    FIELDSTONE_BLOCK_TOO_LONG = 6,       /* more bytes than a request may have */
    FIELDSTONE_BLOCK_FULL = 7,           /* try again after an answer has come */
    FIELDSTONE_BLOCK_CLOSED = 8,         /* the device has ended */
    FIELDSTONE_BLOCK_READ_ONLY = 9,      /* the device is read-only */
    FIELDSTONE_BLOCK_NO_SPACE = 10,      /* no space is left where the store keeps its bytes */
    FIELDSTONE_BLOCK_NOT_SUPPORTED = 11, /* the store does not do this */
    FIELDSTONE_BLOCK_FENCED = 12,        /* another writer has taken the store over */
    FIELDSTONE_BLOCK_IO = 13,            /* the store failed */
    FIELDSTONE_BLOCK_IN_CALLBACK = 14,   /* a callback must not wait for its own device */
    FIELDSTONE_BLOCK_INTERNAL = 15       /* a defect of the library: please report it */
};

/* A result in detail. */
typedef struct fieldstone_block_error {
    int status;        /* an enum fieldstone_block_status */
    char message[508]; /* UTF-8, ends with a zero; empty for FIELDSTONE_BLOCK_OK */
} fieldstone_block_error;

/* How a device is opened. All zeroes are the defaults. */
typedef struct fieldstone_block_options {
    int read_only;             /* refuse what changes data */
    int direct;                /* bypass the page cache */
    const char *const *layers; /* as `serve --layer` takes them: "cache:capacity=64M", "cache:off" */
    size_t layer_count;        /* 64 at most */
    size_t requests;           /* under way at a time; 0 is 256; 65536 at most */
    size_t bytes;              /* read and written under way at a time; 0 is 64 MiB. A request that is
                                  longer goes alone */
} fieldstone_block_options;

/* Told of the answer to an aio call. */
typedef void (*fieldstone_block_callback)(void *arg, int status);

/* An answer in the completion queue. */
typedef struct fieldstone_block_completion {
    void *arg;  /* of the aio call */
    int status; /* an enum fieldstone_block_status */
} fieldstone_block_completion;

/* The version of the library, and the name of a status ("FIELDSTONE_BLOCK_FULL"). Static texts. */
const char *fieldstone_block_version(void);
const char *fieldstone_block_status_name(int status);

/*
 * Opens a device, and waits until it serves. `options` may be NULL. On success `*device` is the
 * caller's, to be closed once; on failure it is NULL.
 */
int fieldstone_block_open(const char *target, const fieldstone_block_options *options,
                          fieldstone_block **device, fieldstone_block_error *error);

/*
 * Waits until every request is answered and every callback has returned, makes stable what was
 * written, and frees the device. What waits in the completion queue is dropped: take it first. Also
 * frees the device when it returns an error, except FIELDSTONE_BLOCK_IN_CALLBACK. NULL is well.
 */
int fieldstone_block_close(fieldstone_block *device, fieldstone_block_error *error);

/* The size in bytes; 0 for NULL. */
uint64_t fieldstone_block_size(const fieldstone_block *device);

/* Calls that wait. */
int fieldstone_block_read(fieldstone_block *device, uint64_t offset, void *buffer, size_t len,
                          fieldstone_block_error *error);
int fieldstone_block_readv(fieldstone_block *device, uint64_t offset, const struct iovec *iov,
                           size_t iov_count, fieldstone_block_error *error);
int fieldstone_block_write(fieldstone_block *device, uint64_t offset, const void *buffer, size_t len,
                           int flags, fieldstone_block_error *error);
int fieldstone_block_writev(fieldstone_block *device, uint64_t offset, const struct iovec *iov,
                            size_t iov_count, int flags, fieldstone_block_error *error);
int fieldstone_block_flush(fieldstone_block *device, fieldstone_block_error *error);
/* Whole blocks of the range read as zeroes afterwards. */
int fieldstone_block_discard(fieldstone_block *device, uint64_t offset, uint64_t len,
                             fieldstone_block_error *error);
/* Every byte of the range reads as zero afterwards. */
int fieldstone_block_write_zeroes(fieldstone_block *device, uint64_t offset, uint64_t len, int flags,
                                  fieldstone_block_error *error);

/* The same without waiting. `arg` comes back with the answer, and may be NULL. */
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
 * The eventfd of the completion queue: readable while answers wait. Only to be polled; it is
 * closed with the device. -1 for NULL.
 */
int fieldstone_block_eventfd(const fieldstone_block *device);

/*
 * Takes up to `max` answers out of the completion queue, and returns how many. Waits up to
 * `timeout_ms` for the first one; 0 does not wait. 0 for NULL.
 */
size_t fieldstone_block_completions(fieldstone_block *device,
                                    fieldstone_block_completion *completions, size_t max,
                                    unsigned timeout_ms);

#ifdef __cplusplus
}
#endif

#endif /* FIELDSTONE_BLOCK_H */
