/* Products of a packet's bytes with the coefficients of one data node: the intermediate parities.
 *
 * The field is GF(2^8) with the polynomial 0x11d, as in crates/gf. One of these is built:
 *
 *   GF_TABLE     the paper's: for each byte, one load from a table of 256 x 256 products per parity
 *   GF_SCHEDULED the same, with the loads ordered so that none waits for the one before it
 *   GF_PAIRS     two bytes at a time: a table of 65,536 entries has all products of two bytes
 *   GF_PLANES    32 elements at a time, without a table, on data in planes of bits
 *
 * The tables are made by the control side. For GF_TABLE and GF_SCHEDULED the one table is
 * `tables[coefficient][byte]`. For GF_PAIRS each entry has 8 bytes: for parities 0 to 3, the
 * products of the low byte and of the high byte; a table serves one column.
 *
 * GF_PLANES takes another layout of the data, that of bit-matrix codes. Each 32 bytes of a packet
 * are a block of 8 words. Word b has bit b of 32 elements: element e is in bit e of the words. The
 * bytes behind the last whole block are elements themselves, and only they use the table, which is
 * that of GF_TABLE. Parities have the same layout. planes.h has the sums of words for the columns
 * of some codes; crates/nic/src/firmware/planes.rs makes it.
 */
#ifndef GF_H
#define GF_H

#include <stdint.h>

/* Writes `parities` (1 to MAX_PARITIES) products of `len` bytes. `data` and `out` are at multiples
 * of 4. 4 bytes after the last of `data` may be read, and each product has room for 4 more. */
void gf_encode(const uint8_t *tables, const uint8_t *coefficients, uint32_t parities,
               const uint8_t *data, uint32_t len, uint8_t *const *out);

#endif
