/* The coder, which is written in Rust: ../src/abi.rs.
 *
 * Functions that return int return 0, or a negative number of errno.h after writing a message to
 * `error` (which may be NULL). They never throw, and never unwind. The caller keeps all memory. A
 * coder may be used by any number of threads at once. */
#ifndef FIELDSTONE_CEPH_CODER_H
#define FIELDSTONE_CEPH_CODER_H

#include <cstddef>
#include <cstdint>

extern "C" {

struct fieldstone_ec;

/* A text without a zero at its end. */
struct fieldstone_ec_text {
  const char *data;
  size_t len_bytes;
};

struct fieldstone_ec_pair {
  fieldstone_ec_text key;
  fieldstone_ec_text value;
};

/* A chunk, or the parts of one that were read. `data` is NULL if there is none. */
struct fieldstone_ec_buffer {
  uint8_t *data;
  size_t len_bytes;
};

/* Sub-chunks `first` to `first + count - 1` of a chunk are to be read. */
struct fieldstone_ec_read {
  uint32_t chunk;
  uint32_t first;
  uint32_t count;
};

struct fieldstone_ec_error {
  int status;
  char message[508];
};

/* Makes the coder of a profile with at most `most_chunks` chunks. */
int fieldstone_ec_new(const fieldstone_ec_pair *pairs, size_t count, size_t most_chunks,
                      fieldstone_ec **handle, fieldstone_ec_error *error);
void fieldstone_ec_free(fieldstone_ec *handle);

/* Key and value number `at` that the profile did not have. False beyond the last one. */
bool fieldstone_ec_default(const fieldstone_ec *handle, size_t at, fieldstone_ec_pair *pair);

uint32_t fieldstone_ec_k(const fieldstone_ec *handle);
uint32_t fieldstone_ec_m(const fieldstone_ec *handle);
uint32_t fieldstone_ec_sub_chunks(const fieldstone_ec *handle);
uint32_t fieldstone_ec_chunk_bytes(const fieldstone_ec *handle, uint32_t object_bytes);

/* What to read to have the chunks `wanted`; `available` is in the order of preference. `count` is
 * set in any case. The result is -ERANGE if it is larger than `room`. */
int fieldstone_ec_minimum(const fieldstone_ec *handle, const uint32_t *wanted, size_t wanted_count,
                          const uint32_t *available, size_t available_count,
                          fieldstone_ec_read *reads, size_t room, size_t *count,
                          fieldstone_ec_error *error);

/* `chunks` are all k + m. The first k are read, the others are written. */
int fieldstone_ec_encode(const fieldstone_ec *handle, const fieldstone_ec_buffer *chunks,
                         size_t count, fieldstone_ec_error *error);

/* Entry i of both arrays is that of chunk i. Outputs are whole chunks; those that are given are
 * whole chunks too, or all of them are the parts that fieldstone_ec_minimum named. */
int fieldstone_ec_decode(const fieldstone_ec *handle, const fieldstone_ec_buffer *given,
                         const fieldstone_ec_buffer *outputs, size_t count,
                         fieldstone_ec_error *error);
}

#endif
